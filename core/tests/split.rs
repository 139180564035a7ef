//! Record boundaries against the server's loop, byte by byte, however the input is cut into blocks.

use pgsweep_core::split::{Rule, Splitter};
use proptest::prelude::*;

/// `CopyReadLineText` of copyfromparse.c, reduced to what ends a line.
fn reference(rule: Rule, terminator: u8, data: &[u8]) -> Vec<usize> {
    let (mut in_quote, mut last_was_escape) = (false, false);
    let mut ends = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let byte = data[at];
        at += 1;
        match rule {
            Rule::Csv { quote, escape } => {
                if in_quote && escape != quote && byte == escape {
                    last_was_escape = !last_was_escape;
                }
                if byte == quote && !last_was_escape {
                    in_quote = !in_quote;
                }
                if escape == quote || byte != escape {
                    last_was_escape = false;
                }
            }
            Rule::Text if byte == b'\\' => {
                at += 1;
                continue;
            }
            Rule::Text | Rule::Lines => {}
        }
        if byte == terminator && !in_quote {
            ends.push(at);
        }
    }
    ends
}

fn rules() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::Csv {
            quote: b'"',
            escape: b'"'
        }),
        Just(Rule::Csv {
            quote: b'\'',
            escape: b'\\'
        }),
        Just(Rule::Text),
        Just(Rule::Lines),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        3 => Just(b'a'), 2 => Just(b'"'), 2 => Just(b'\''), 2 => Just(b'\\'), 2 => Just(b'\n'), 1 => Just(b'\r'),
        1 => Just(b','), 1 => any::<u8>(),
    ];
    prop_oneof![
        proptest::collection::vec(byte, 0..200),
        proptest::collection::vec(
            prop_oneof![60 => Just(b'x'), 1 => Just(b'"'), 2 => Just(b'\n')],
            0..800
        ),
    ]
}

proptest! {
    #[test]
    fn boundaries_are_the_servers(
        rule in rules(),
        terminator in prop_oneof![Just(b'\n'), Just(b'\r')],
        data in bytes(),
        cuts in proptest::collection::vec(0usize..800, 0..6),
    ) {
        let wanted = reference(rule, terminator, &data);
        let mut places: Vec<usize> = cuts.into_iter().filter(|&cut| cut <= data.len()).collect();
        places.extend([0, data.len()]);
        places.sort_unstable();
        let (mut all, mut last) = (Splitter::new(rule, terminator), Splitter::new(rule, terminator));
        let (mut found, mut lines) = (Vec::new(), 0);
        for pair in places.windows(2) {
            let block = &data[pair[0]..pair[1]];
            let ends = all.ends(block);
            let scan = last.feed(block);
            prop_assert_eq!(scan.end, ends.last().copied());
            prop_assert_eq!(scan.records, ends.len() as u64);
            lines += scan.lines;
            if let Some(&end) = ends.last() {
                let passed = memchr::memchr_iter(terminator, &data[..pair[0] + end]).count();
                prop_assert_eq!(lines, passed as u64);
            }
            prop_assert_eq!(all.is_open(), last.is_open());
            found.extend(ends.into_iter().map(|end| end + pair[0]));
        }
        prop_assert_eq!(found, wanted);
    }
}
