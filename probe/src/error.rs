//! What can go wrong while a server is probed, in words that a user can act upon.

use std::fmt;
use std::io;

/// The one error of this crate.
#[derive(Debug)]
pub enum ProbeError {
    /// This kernel, machine, server build or privilege does not allow it.
    Missing {
        /// What is missing, one sentence.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// A system call or a file read failed.
    System {
        /// What was attempted.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl ProbeError {
    /// Say that an ability is missing.
    pub fn missing(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// Say that a system call failed with the present `errno`.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::system(what, io::Error::last_os_error())
    }

    /// Say that an operation failed; where this process may open no more files, what raises that limit.
    pub fn system(what: impl Into<String>, source: io::Error) -> Self {
        if source.raw_os_error() == Some(libc::EMFILE) {
            return Self::missing(format!("{}: {source}", what.into()), "ulimit -n 1024");
        }
        Self::System {
            what: what.into(),
            source,
        }
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what, .. } => f.write_str(what),
            Self::System { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for ProbeError {}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ProbeError>;
