//! The memory of another process, read and never written.
//!
//! `process_vm_readv(2)` copies straight from the other's pages, hugepages included, and the other does not notice. Where
//! it is not to be had (a container's seccomp filter, a kernel without CONFIG_CROSS_MEMORY_ATTACH), `/proc/PID/mem` gives
//! the same a few times slower. Both ask for the right to trace the process (`PTRACE_MODE_ATTACH`, ptrace(2)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ProbeError, Result};

/// The memory of one process.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    file: File,
    /// Whether `process_vm_readv` has not been refused yet.
    direct: AtomicBool,
}

impl Memory {
    /// Open the memory of a process.
    ///
    /// # Errors
    /// No such process, or no right to read it.
    pub fn open(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/mem");
        let file =
            File::open(&path).map_err(|e| ProbeError::system(format!("cannot open {path}"), e))?;
        Ok(Self {
            pid,
            file,
            direct: AtomicBool::new(true),
        })
    }

    /// Use `/proc/PID/mem` only, as where `process_vm_readv` is refused.
    #[must_use]
    pub fn by_file(mut self) -> Self {
        self.direct = AtomicBool::new(false);
        self
    }

    /// Fill the buffer from this address of the process.
    ///
    /// # Errors
    /// The process has ended, or nothing is mapped there (any more).
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        if self.direct.load(Ordering::Relaxed) {
            match read_direct(self.pid, address, buffer) {
                Err(e) if refused(&e) => self.direct.store(false, Ordering::Relaxed),
                result => return result.map_err(explain),
            }
        }
        self.file.read_exact_at(buffer, address).map_err(explain)
    }
}

/// Return whether the call itself is not to be had here; the file has been opened, so that the right to read is there.
fn refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES)
    )
}

fn read_direct(pid: u32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let local = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let remote = libc::iovec {
            iov_base: (address + done as u64) as *mut libc::c_void,
            iov_len: rest.len(),
        };
        // SAFETY: the kernel writes at most `rest.len()` bytes into `rest`; the remote address is not ours to follow.
        let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
        match count {
            1.. => done += count as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// Say what a failed read means. A process that ended has no memory: ESRCH, or the end of its file.
fn explain(error: io::Error) -> ProbeError {
    if error.kind() == io::ErrorKind::UnexpectedEof || error.raw_os_error() == Some(libc::ESRCH) {
        return ProbeError::system(
            "the server ended while its memory was read",
            io::Error::from_raw_os_error(libc::ESRCH),
        );
    }
    if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EIO)) {
        return ProbeError::system(
            "the server's shared memory is no longer where it was: it has restarted",
            error,
        );
    }
    ProbeError::system("cannot read the server's memory", error)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Return a process that has come to its own code: its memory is no longer in the making.
    fn waiter() -> Child {
        let mut child = Command::new("sh")
            .args(["-c", "echo ready; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let said = child.stdout.as_mut().expect("a pipe");
        said.read_exact(&mut [0; 6]).expect("ready");
        child
    }

    fn end(mut child: Child) {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    /// Return the first readable mapping of the process that a file is behind.
    fn mapping(pid: u32) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        let line = maps.lines().find(|l| l.contains("r--p")).expect("mapping");
        u64::from_str_radix(line.split('-').next().expect("start"), 16).expect("hex")
    }

    #[test]
    fn both_ways_read_the_same() {
        let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let memory = Memory::open(std::process::id()).expect("open");
        for memory in [
            memory,
            Memory::open(std::process::id()).expect("open").by_file(),
        ] {
            let mut copy = vec![0; data.len()];
            memory.read(data.as_ptr() as u64, &mut copy).expect("read");
            assert_eq!(copy, data);
        }
    }

    #[test]
    fn an_address_without_memory_is_an_error() {
        for memory in [
            Memory::open(std::process::id()).expect("open"),
            Memory::open(std::process::id()).expect("open").by_file(),
        ] {
            let error = memory.read(64, &mut [0; 8]).expect_err("unmapped");
            assert!(
                error.to_string().contains("no longer where it was"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_ended_process_is_told_as_such() {
        let child = waiter();
        let pid = child.id();
        let (direct, file) = (
            Memory::open(pid).expect("open"),
            Memory::open(pid).expect("open").by_file(),
        );
        let address = mapping(pid);
        for memory in [&direct, &file] {
            memory.read(address, &mut [0; 8]).expect("still there");
        }
        end(child);
        for memory in [&direct, &file] {
            let error = memory.read(address, &mut [0; 8]).expect_err("ended");
            assert!(
                error
                    .to_string()
                    .contains("the server ended while its memory was read"),
                "{error}"
            );
        }
    }
}
