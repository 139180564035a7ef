//! From made-up events to rows, without a server.

use pgsweep_probe::columns::{Accesses, EXTEND, FLAG_PINNED, FLAG_SCAN, HIT, MISS};
use pgsweep_probe::decode::Decoder;
use pgsweep_probe::event::{Event, Kind, Tag, BUFFER_KNOWN, BUFFER_PINNED};

struct Server {
    decoder: Decoder,
    time_ns: u64,
}

impl Server {
    fn new(version_num: u32) -> Self {
        Self {
            decoder: Decoder::new(0, version_num),
            time_ns: 0,
        }
    }

    fn event(&mut self, pid: u32, kind: Kind, rel: u32, block: u32, buffer: u8) {
        self.time_ns += 1000;
        self.decoder.event(&Event {
            tag: Tag {
                spc: 1663,
                db: 5,
                rel,
                fork: 0,
                block,
            },
            kind,
            buffer,
            pid,
            time_ns: self.time_ns,
        });
    }

    fn hit(&mut self, pid: u32, rel: u32, block: u32) {
        self.event(pid, Kind::Hit, rel, block, BUFFER_KNOWN);
    }

    fn miss(&mut self, pid: u32, rel: u32, block: u32) {
        self.event(pid, Kind::Absent, 0, 0, 0);
        self.event(pid, Kind::Insert, rel, block, 0);
    }

    fn end(mut self) -> Accesses {
        self.decoder.take(self.time_ns, true).accesses
    }
}

#[test]
fn a_page_is_hit_missed_or_new() {
    let mut server = Server::new(180_006);
    server.hit(1, 16384, 0);
    server.event(1, Kind::Absent, 0, 0, 0);
    server.hit(2, 16384, 9);
    server.event(1, Kind::Insert, 16384, 1, 0);
    server.event(1, Kind::Insert, 16384, 2, 0);
    let rows = server.end();
    assert_eq!(rows.kind, [HIT, HIT, MISS, EXTEND]);
    assert_eq!(rows.block, [0, 9, 1, 2]);
}

#[test]
fn up_to_15_a_new_page_is_recognized_by_the_extension_of_its_file() {
    let mut server = Server::new(150_018);
    server.miss(1, 16384, 7);
    server.event(1, Kind::Extend, 16384, 7, 0);
    server.miss(1, 16384, 3);
    // BufferAlloc tries again with another victim: still the same miss.
    server.event(1, Kind::Insert, 16384, 3, 0);
    let rows = server.end();
    assert_eq!(rows.kind, [EXTEND, MISS]);
}

#[test]
fn without_the_result_a_miss_is_known_by_what_follows() {
    let mut server = Server::new(180_006);
    server.event(1, Kind::Lookup, 16384, 0, 0);
    server.event(1, Kind::Lookup, 16384, 1, 0);
    server.event(1, Kind::Insert, 16384, 1, 0);
    let rows = server.end();
    assert_eq!(rows.kind, [HIT, MISS]);
}

#[test]
fn rows_wait_until_their_kind_is_certain() {
    let mut server = Server::new(180_006);
    server.event(1, Kind::Lookup, 16384, 0, 0);
    assert!(server
        .decoder
        .take(server.time_ns, false)
        .accesses
        .is_empty());
    server.event(1, Kind::Insert, 16384, 0, 0);
    let later_ns = server.time_ns + 3_000_000_000;
    assert_eq!(server.decoder.take(later_ns, false).accesses.kind, [MISS]);
}

#[test]
fn a_page_is_pinned_by_the_process_that_used_it_a_moment_ago() {
    let mut server = Server::new(180_006);
    server.hit(1, 16384, 0);
    server.event(1, Kind::Hit, 16384, 0, BUFFER_KNOWN | BUFFER_PINNED);
    server.event(2, Kind::Hit, 16384, 0, BUFFER_KNOWN | BUFFER_PINNED);
    server.hit(1, 16384, 0);
    let rows = server.end();
    assert_eq!(
        rows.flags
            .iter()
            .map(|f| f & FLAG_PINNED)
            .collect::<Vec<_>>(),
        [0, FLAG_PINNED, 0, 0]
    );
}

#[test]
fn a_scan_is_distinguished_from_other_accesses_to_its_table() {
    let mut server = Server::new(150_018);
    let sequential_with_ring = 1 | (1 << 6);
    server.event(1, Kind::ScanBegin, 16384, sequential_with_ring, 0);
    server.event(1, Kind::StrategyMade, 0, 1, 0);
    // A synchronized scan begins anywhere, and wraps around.
    for block in [7, 8, 20, 9, 0, 1, 2] {
        server.hit(1, 16384, block);
    }
    server.event(1, Kind::ScanEnd, 16384, 0, 0);
    server.hit(1, 16384, 3);
    let rows = server.end();
    let scanned: Vec<u8> = rows.flags.iter().map(|f| f & FLAG_SCAN).collect();
    assert_eq!(scanned, [1, 1, 0, 1, 0, 1, 1, 0]);
    assert_eq!(rows.strategy, [1, 1, 0, 1, 0, 1, 1, 0]);
}

#[test]
fn a_failed_transaction_ends_what_was_open() {
    let mut server = Server::new(180_006);
    server.event(1, Kind::VacuumBegin, 16384, 0, 0);
    server.hit(1, 16384, 0);
    server.event(1, Kind::Reset, 0, 0, 0);
    server.hit(1, 16384, 0);
    let rows = server.end();
    assert_eq!(rows.strategy, [3, 0]);
}

#[test]
fn all_pages_of_one_extension_have_its_strategy() {
    let mut server = Server::new(180_006);
    server.event(1, Kind::BulkBegin, 0, 0, 0);
    server.event(1, Kind::Ring, 0, 2, 0);
    for block in 0..3 {
        server.event(1, Kind::Insert, 16384, block, 0);
    }
    server.event(1, Kind::BulkEnd, 0, 0, 0);
    server.miss(1, 16384, 0);
    let rows = server.end();
    assert_eq!(rows.kind, [EXTEND, EXTEND, EXTEND, MISS]);
    assert_eq!(rows.strategy, [2, 2, 2, 0]);
}

#[test]
fn a_steady_trickle_is_handed_out_while_it_goes_on() {
    let mut server = Server::new(150_018);
    let (mut handed, mut blocks) = (0, Vec::new());
    for block in 0..100 {
        server.time_ns += 100_000_000;
        // The miss may still become an extension: it is undecided until its process goes on.
        server.miss(1, 16384, block);
        let part = server.decoder.take(server.time_ns, false).accesses;
        handed += part.len();
        blocks.extend(part.block);
        assert!(
            block as usize + 1 - handed <= 25,
            "{handed} of {} rows",
            block + 1
        );
    }
    blocks.extend(server.end().block);
    assert_eq!(blocks, (0..100).collect::<Vec<u32>>());
}
