//! Record boundaries in the text formats of COPY, found by the server's own rules.
//!
//! `COPY ... CSV` decides what is within quotes by parity alone: every quote character toggles it, also one in the
//! middle of an unquoted field (copyfromparse.c, `CopyReadLineText`). With an escape character other than the quote, a
//! quote right after it does not toggle. In the text format the byte after a backslash has no special meaning. So a piece
//! cut here holds the records that one COPY of the whole would see.
//!
//! Bytes above 127 have no meaning here, which is right for every encoding whose further bytes are above 127.

use memchr::{memchr, memchr2_iter, memchr3_iter, memchr_iter, memrchr};

/// What ends a record, and what takes that meaning from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// CSV: a terminator within quotes belongs to a field.
    Csv {
        /// The quote character.
        quote: u8,
        /// The character before a quote that stays one; the quote itself by default.
        escape: u8,
    },
    /// COPY's text format: a terminator after a backslash belongs to a field.
    Text,
    /// Every terminator ends a record: JSON lines.
    Lines,
}

/// What one block brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Where the last record that ends in the block ends, after its terminator; nothing where none does.
    pub end: Option<usize>,
    /// How many records end in the block.
    pub records: u64,
    /// How many lines the records have that end in the block: more than `records` where fields hold terminators.
    pub lines: u64,
}

/// Finds record boundaries in a stream that comes in blocks of any length.
#[derive(Debug, Clone)]
pub struct Splitter {
    rule: Rule,
    terminator: u8,
    in_quote: bool,
    escaped: bool,
    open_lines: u64,
}

impl Splitter {
    /// A splitter at the start of a record.
    ///
    /// `terminator` is the last byte of a line end: a line feed, or a carriage return in files that have no line feeds.
    pub fn new(rule: Rule, terminator: u8) -> Self {
        Self {
            rule,
            terminator,
            in_quote: false,
            escaped: false,
            open_lines: 0,
        }
    }

    /// Whether the bytes so far end within quotes or after an escape: a record is open for certain.
    pub fn is_open(&self) -> bool {
        self.in_quote || self.escaped
    }

    /// Take the next block, and return the last boundary in it and the number of records that end in it.
    pub fn feed(&mut self, block: &[u8]) -> Scan {
        let scan = self.scanned(block);
        let count = |part: &[u8]| memchr_iter(self.terminator, part).count() as u64;
        let Some(end) = scan.end else {
            self.open_lines += count(block);
            return scan;
        };
        let lines = self.open_lines + count(&block[..end]);
        self.open_lines = count(&block[end..]);
        Scan { lines, ..scan }
    }

    fn scanned(&mut self, block: &[u8]) -> Scan {
        match self.rule {
            Rule::Csv { quote, escape } if quote == escape => self.parity(block, quote),
            Rule::Csv { .. } | Rule::Text => {
                let mut scan = Scan::default();
                self.each(block, |end| {
                    scan.end = Some(end);
                    scan.records += 1;
                });
                scan
            }
            Rule::Lines => self.unquoted(block, 0),
        }
    }

    /// Take the next block, and return where each record that ends in it ends.
    pub fn ends(&mut self, block: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        self.each(block, |end| found.push(end));
        found
    }

    fn unquoted(&self, part: &[u8], begin: usize) -> Scan {
        match memrchr(self.terminator, part) {
            None => Scan::default(),
            Some(last) => Scan {
                end: Some(begin + last + 1),
                records: memchr_iter(self.terminator, part).count() as u64,
                lines: 0,
            },
        }
    }

    /// Parity only: what lies between two quotes is skipped or counted at memory speed.
    fn parity(&mut self, block: &[u8], quote: u8) -> Scan {
        let mut scan = Scan::default();
        let mut at = 0;
        while at < block.len() {
            let stop = memchr(quote, &block[at..]).map_or(block.len(), |next| at + next);
            if !self.in_quote {
                // Most parts between two quotes are a delimiter.
                let part = &block[at..stop];
                if part.len() < 16 {
                    for (place, &byte) in part.iter().enumerate() {
                        if byte == self.terminator {
                            scan.end = Some(at + place + 1);
                            scan.records += 1;
                        }
                    }
                } else {
                    let found = self.unquoted(part, at);
                    scan.end = found.end.or(scan.end);
                    scan.records += found.records;
                }
            }
            if stop == block.len() {
                break;
            }
            self.in_quote = !self.in_quote;
            at = stop + 1;
        }
        scan
    }

    fn each(&mut self, block: &[u8], mut found: impl FnMut(usize)) {
        match self.rule {
            Rule::Lines => memchr_iter(self.terminator, block).for_each(|at| found(at + 1)),
            Rule::Csv { quote, escape } if quote == escape => {
                for at in memchr2_iter(quote, self.terminator, block) {
                    if block[at] == quote {
                        self.in_quote = !self.in_quote;
                    } else if !self.in_quote {
                        found(at + 1);
                    }
                }
            }
            Rule::Csv { quote, escape } => self.with_escape(block, quote, escape, found),
            Rule::Text => {
                // The byte after a backslash, which may be the first of the next block, means nothing.
                let mut skipped = usize::from(self.escaped && !block.is_empty());
                self.escaped &= block.is_empty();
                for at in memchr2_iter(b'\\', self.terminator, block) {
                    if at < skipped {
                        continue;
                    }
                    if block[at] == b'\\' {
                        skipped = at + 2;
                    } else {
                        found(at + 1);
                    }
                }
                self.escaped |= skipped > block.len();
            }
        }
    }

    fn with_escape(&mut self, block: &[u8], quote: u8, escape: u8, mut found: impl FnMut(usize)) {
        // `escaped` is whether the byte before was an escape that is not itself escaped (last_was_esc).
        let mut expected = 0;
        for at in memchr3_iter(quote, escape, self.terminator, block) {
            if at > expected {
                self.escaped = false;
            }
            expected = at + 1;
            let byte = block[at];
            if byte == escape {
                self.escaped = self.in_quote && !self.escaped;
                continue;
            }
            if byte == quote {
                if !self.escaped {
                    self.in_quote = !self.in_quote;
                }
            } else if !self.in_quote {
                found(at + 1);
            }
            self.escaped = false;
        }
        if expected < block.len() {
            self.escaped = false;
        }
    }
}
