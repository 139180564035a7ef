//! The mathematics around the pool: what a page's counter does on average, and how to read rates off counters.
//!
//! * [`clock`]: the stationary law of one page under the clock sweep, from its rate of visits.
//! * [`mixture`]: the inverse: the distribution of rates that explains what was seen (EM).
//! * [`paths`]: how likely it is what close snapshots show of a page, at each rate.
//! * [`scans`]: in which state a trace finds the pages that scans visit again and again.
//! * [`visits`]: a load drawn from rates.

pub mod clock;
pub mod mixture;
pub mod paths;
pub mod scans;
pub mod visits;
