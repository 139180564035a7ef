//! System calls that are not cut short when this process is killed.
//!
//! To place or remove the breakpoint of a uprobe the kernel looks at a page of the server, and it does not while a
//! fatal signal is pending for the caller (`__get_user_pages`, mm/gup.c). A kill at that moment leaves the breakpoint
//! in the server's code, where it costs time at every pass until the server ends or somebody probes the same
//! instruction again ("failed to unregister, leaking uprobe", kernel/events/uprobes.c). Descriptors that are still open
//! when a process dies do no harm: the signal is no longer pending when the kernel closes them.
//!
//! So these calls are made by a process of its own that shares our memory and our descriptors. It lives no longer than
//! the call, and a kill of this process does not reach it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

const STACK_BYTES: usize = 64 << 10;

struct Work<F, T> {
    call: Option<F>,
    result: Option<T>,
}

/// Make system calls in a process that outlives a kill of this one, and return what they return.
///
/// Where no such process can be made, this one makes the calls.
///
/// # Safety
/// `call` takes no lock, allocates nothing and does not panic: a thread that was killed may have held the lock.
pub unsafe fn in_sibling<T, F: FnOnce() -> T>(call: F) -> T {
    // Words of 16 bytes: the alignment that a stack must have.
    let mut stack = vec![0u128; STACK_BYTES / size_of::<u128>()];
    let mut work = Work {
        call: Some(call),
        result: None,
    };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: because of CLONE_VFORK this thread waits until the child has ended, so that the child alone uses the stack,
    // `work`, and what is this thread's own, such as errno; if this thread is killed, nothing frees them. The child
    // inherits the blocked signals. Both sets of signals are initialized by the calls that they are passed to.
    unsafe {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
        let child = libc::clone(
            carry_out::<T, F>,
            stack.as_mut_ptr_range().end.cast(),
            // Without a signal at its end it is no child that others of this process wait for.
            libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_VFORK,
            ptr::from_mut(&mut work).cast(),
        );
        if child > 0 {
            libc::waitpid(child, ptr::null_mut(), libc::__WALL);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut());
    }
    match (work.result, work.call) {
        (Some(result), _) => result,
        (None, Some(call)) => call(),
        (None, None) => unreachable!("a call that was begun has a result"),
    }
}

/// The child's main function.
extern "C" fn carry_out<T, F: FnOnce() -> T>(work: *mut c_void) -> c_int {
    // SAFETY: `in_sibling` passes its own and does not touch it before this process has ended.
    let work = unsafe { &mut *work.cast::<Work<F, T>>() };
    // A kill of our process group is no kill of this one.
    // SAFETY: it changes this process alone.
    unsafe { libc::setsid() };
    if let Some(call) = work.call.take() {
        work.result = Some(call());
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    #[test]
    fn a_call_is_made_by_another_process_with_our_memory_and_descriptors() {
        let mut seen = 0;
        // SAFETY: system calls alone.
        let descriptor = unsafe {
            in_sibling(|| {
                seen = libc::getpid();
                libc::eventfd(0, libc::EFD_CLOEXEC)
            })
        };
        assert!(seen > 0);
        assert_ne!(seen, std::process::id() as i32);
        // SAFETY: the call has just made it.
        let event = unsafe { std::fs::File::from_raw_fd(descriptor) };
        assert!(event.metadata().is_ok());
        // Nothing is left of it.
        // SAFETY: signal 0 only asks.
        assert_eq!(unsafe { libc::kill(seen, 0) }, -1);
    }

    #[test]
    fn an_error_is_that_of_the_call() {
        // SAFETY: system calls alone.
        let (result, error) = unsafe {
            in_sibling(|| {
                (
                    libc::close(-1),
                    std::io::Error::last_os_error().raw_os_error(),
                )
            })
        };
        assert_eq!((result, error), (-1, Some(libc::EBADF)));
    }
}
