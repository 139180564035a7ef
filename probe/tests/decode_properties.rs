//! What holds of any stream of events, however they follow each other.

use std::collections::HashSet;

use pgsweep_probe::backend_state::{BackendState, Begin};
use pgsweep_probe::columns::{Accesses, Scans, EXTEND, FLAG_STRATEGY_KNOWN, HIT, MISS};
use pgsweep_probe::decode::{Counts, Decoder};
use pgsweep_probe::event::{
    Event, Kind, ScanOptions, Tag, BUFFER_KNOWN, BUFFER_OFFSET, BUFFER_PINNED, EVENT_BYTES,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const START_NS: u64 = 1_000_000_000;

/// A page among few, so that events meet the same ones.
fn tag() -> impl Strategy<Value = Tag> {
    (
        select(vec![0, 1259, 16384, 16385]),
        select(vec![0, 0, 0, 1, 2]),
        0_u32..6,
    )
        .prop_map(|(rel, fork, block)| Tag {
            spc: if rel == 0 { 0 } else { 1663 },
            db: if rel == 0 { 0 } else { 5 },
            rel,
            fork,
            block,
        })
}

/// An event after another one, so many nanoseconds later.
fn event(longest_pause_ns: u64) -> impl Strategy<Value = (Event, u64)> {
    let kind = prop_oneof![
        6 => select(vec![Kind::Hit, Kind::Absent, Kind::Insert, Kind::Lookup, Kind::Extend]),
        4 => select(Kind::ALL.to_vec()),
    ];
    let buffer = select(vec![0, BUFFER_KNOWN | 3, BUFFER_KNOWN | BUFFER_PINNED]);
    let options = prop_oneof![3 => 0_u32..7, 1 => any::<u32>()];
    (kind, tag(), buffer, 1_u32..4, options, 0..=longest_pause_ns).prop_map(
        |(kind, mut tag, buffer, pid, options, pause_ns)| {
            if kind == Kind::ScanBegin {
                tag.block = options << 4 | options;
            }
            let event = Event {
                tag,
                kind,
                buffer,
                pid,
                time_ns: 0,
            };
            (event, pause_ns)
        },
    )
}

fn timed(events: Vec<(Event, u64)>) -> Vec<Event> {
    let mut now_ns = START_NS;
    events
        .into_iter()
        .map(|(mut event, pause_ns)| {
            now_ns += pause_ns;
            event.time_ns = now_ns;
            event
        })
        .collect()
}

struct Decoded {
    accesses: Accesses,
    scans: Scans,
    counts: Counts,
}

/// Decode all events, taking what is ready after every `step` of them.
fn decode(events: &[Event], version_num: u32, step: usize) -> Decoded {
    let mut decoder = Decoder::new(START_NS, version_num);
    let (mut accesses, mut scans) = (Accesses::default(), Scans::default());
    let mut now_ns = START_NS;
    for part in events.chunks(step) {
        for event in part {
            decoder.event(event);
            now_ns = event.time_ns;
        }
        let mut ready = decoder.take(now_ns, false);
        accesses.append(&mut ready.accesses);
        scans.append(&mut ready.scans);
        assert_eq!(decoder.held_rows(), decoder.rows() - accesses.len() as u64);
    }
    let mut ready = decoder.take(now_ns, true);
    accesses.append(&mut ready.accesses);
    scans.append(&mut ready.scans);
    Decoded {
        accesses,
        scans,
        counts: decoder.counts(),
    }
}

fn begin(id: u32) -> Begin {
    Begin {
        id,
        pid: 1,
        time_ns: u64::from(id),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn counts_are_those_of_the_rows(
        events in vec(event(1_500_000_000), 0..200),
        version_num in select(vec![140_000, 150_018, 160_000, 180_006]),
        step in 1_usize..50,
    ) {
        let events = timed(events);
        let found = decode(&events, version_num, step);
        let of_kind =
            |kind: u8| found.accesses.kind.iter().map(|k| u64::from(*k == kind)).sum::<u64>();
        prop_assert_eq!(found.counts.events, events.len() as u64);
        prop_assert_eq!(found.counts.hits, of_kind(HIT));
        prop_assert_eq!(found.counts.misses, of_kind(MISS));
        prop_assert_eq!(found.counts.extends, of_kind(EXTEND));
        prop_assert!(found.accesses.time_ns.is_sorted());
    }

    #[test]
    fn when_rows_are_taken_does_not_change_them(
        // So short that no access is given up as undecided.
        events in vec(event(5_000_000), 0..200),
        version_num in select(vec![140_000, 150_018, 180_006]),
        step in 1_usize..50,
    ) {
        let events = timed(events);
        let (once, often) = (decode(&events, version_num, usize::MAX), decode(&events, version_num, step));
        prop_assert_eq!(once.counts, often.counts);
        prop_assert_eq!(&once.accesses.block, &often.accesses.block);
        prop_assert_eq!(&once.accesses.kind, &often.accesses.kind);
        prop_assert_eq!(&once.accesses.strategy, &often.accesses.strategy);
        prop_assert_eq!(&once.accesses.flags, &often.accesses.flags);
        prop_assert_eq!(&once.accesses.scan, &often.accesses.scan);
        prop_assert_eq!(&once.scans.scan, &often.scans.scan);
    }

    #[test]
    fn every_scan_ends_once_and_every_access_names_one_that_is_known(
        events in vec(event(1_500_000_000), 0..400),
        step in 1_usize..50,
    ) {
        let found = decode(&timed(events), 180_006, step);
        let known: HashSet<u32> = found.scans.scan.iter().copied().collect();
        prop_assert_eq!(known.len(), found.scans.scan.len(), "a scan ended twice");
        for scan in &found.accesses.scan {
            prop_assert!(*scan == 0 || known.contains(scan), "scan {} never ended", scan);
        }
        for (begin, end) in found.scans.begin_ns.iter().zip(&found.scans.end_ns) {
            prop_assert!(begin <= end);
        }
    }

    #[test]
    fn maps_of_free_space_and_visibility_have_no_strategy(
        events in vec(event(1_500_000_000), 0..300),
        version_num in select(vec![140_000, 180_006]),
    ) {
        let found = decode(&timed(events), version_num, 20);
        for i in 0..found.accesses.len() {
            if found.accesses.fork[i] != 0 {
                prop_assert_eq!(found.accesses.strategy[i], 0);
                prop_assert_eq!(found.accesses.scan[i], 0);
            }
        }
    }

    #[test]
    fn any_bytes_are_an_event_or_none(bytes in vec(any::<u8>(), EVENT_BYTES..=EVENT_BYTES)) {
        let bytes: [u8; EVENT_BYTES] = bytes.try_into().expect("as long as an event");
        if let Some(event) = Event::read(&bytes) {
            prop_assert_eq!(event.buffer, bytes[BUFFER_OFFSET as usize]);
            let mut decoder = Decoder::new(START_NS, 150_018);
            decoder.event(&event);
            decoder.event(&event);
            decoder.take(u64::MAX, true);
        }
    }

    #[test]
    fn a_scan_in_order_is_followed_from_anywhere_and_around(
        first in 0_u32..40,
        blocks in 3_u32..40,
        others in vec((0_usize..40, 0_u32..80), 0..10),
    ) {
        let first = first % blocks;
        let table = Tag { spc: 1663, db: 5, rel: 16384, fork: 0, block: 0 };
        let mut scans = Scans::default();
        let mut process = BackendState::default();
        let options = ScanOptions::of_version(180_006);
        let flags = options.sequential & !options.sample | options.allow_strategy;
        prop_assert!(process.begin_scan(begin(7), table, flags, options, &mut scans));
        process.strategy_made(1);
        for at in 0..blocks {
            // Accesses to pages that the scan does not read next are not the scan's.
            for (_, block) in others.iter().filter(|(when, _)| *when == at as usize && at > 0) {
                let next = (first + at) % blocks;
                // Between the first two pages they would hide that the scan wraps around.
                if *block != next && (2..blocks).contains(block) && next != 1 {
                    let (strategy, _, scan) = process.context(&Tag { block: *block, ..table });
                    prop_assert_eq!((strategy, scan), (0, 0));
                }
            }
            let block = (first + at) % blocks;
            let (strategy, _, scan) = process.context(&Tag { block, ..table });
            // Where it wraps around, its first page is known for the scan's by the second only.
            if block != 0 || first == 0 {
                prop_assert_eq!((strategy, scan), (1, 7), "block {}", block);
            }
        }
        process.end_scan(table, 1, &mut scans);
        prop_assert_eq!(&scans.scan, &vec![7]);
        prop_assert_eq!(process.context(&table), (0, 0, 0));
    }

    #[test]
    fn nothing_is_left_of_what_a_reset_ends(
        steps in vec((0_u8..9, tag(), 0_u8..4, any::<u32>()), 0..400),
    ) {
        let mut process = BackendState::default();
        let mut scans = Scans::default();
        let options = ScanOptions::of_version(180_006);
        let mut begun = HashSet::new();
        for (number, (what, tag, strategy, flags)) in (1_u32..).zip(steps) {
            let time_ns = u64::from(number);
            match what {
                0 => {
                    if process.begin_scan(begin(number), tag, flags, options, &mut scans) {
                        begun.insert(number);
                    }
                }
                1 => process.end_scan(tag, time_ns, &mut scans),
                2 => {
                    process.begin_vacuum(begin(number), tag, &mut scans);
                    begun.insert(number);
                }
                3 => process.end_vacuum(time_ns, &mut scans),
                4 => {
                    process.begin_bulk(begin(number), &mut scans);
                    begun.insert(number);
                }
                5 => process.strategy_made(strategy),
                6 => {
                    process.ring = Some((u64::from(flags % 4), strategy));
                    let (found, scan) = process.missed(&tag);
                    prop_assert!(tag.fork == 0 || (found, scan) == (0, 0));
                }
                7 => process.strategy_freed(u64::from(flags % 4)),
                _ => {
                    let (found, known, scan) = process.context(&tag);
                    prop_assert!(tag.fork == 0 || (found, known, scan) == (0, FLAG_STRATEGY_KNOWN, 0));
                    prop_assert!(scan == 0 || begun.contains(&scan));
                }
            }
        }
        process.reset(1000, &mut scans);
        let ended: HashSet<u32> = scans.scan.iter().copied().collect();
        prop_assert_eq!(ended.len(), scans.scan.len(), "one ended twice");
        prop_assert_eq!(ended, begun);
        for rel in [1259, 16384, 16385] {
            let tag = Tag { spc: 1663, db: 5, rel, fork: 0, block: 3 };
            prop_assert_eq!(process.context(&tag), (0, 0, 0));
        }
    }
}
