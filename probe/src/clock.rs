//! The kernel's clocks.

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec that outlives the call; these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, std::ptr::addr_of_mut!(time)) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Return the monotonic clock's time in nanoseconds: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Return the processor time that the calling thread has used, in nanoseconds.
pub fn thread_processor_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}
