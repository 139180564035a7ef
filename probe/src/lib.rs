//! What a running PostgreSQL server does, seen from outside (Linux).
//!
//! All `unsafe` code of the project lives in this crate.
