//! The memory of another process, read and never written.
//!
//! It is bound by one descriptor of `/proc/PID/mem`, huge pages included; the process notices nothing. Opening asks for the
//! right to trace the process (`PTRACE_MODE_ATTACH`, ptrace(2)), and binds the descriptor to the memory that the process has
//! then (fs/proc/base.c: `__mem_open`). Reading there copies each page twice (`mem_rw`). `process_vm_readv(2)` copies once,
//! but takes a process id, which may have become another process's meanwhile. So what is long is read by the id, and a byte
//! through the descriptor afterwards: if this succeeds, the memory still has a user, so the id was not reused until then.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{ProbeError, Result};

/// From this length on it is read by process id: below, the second call costs more than copying twice.
const LONG_BYTES: usize = 64 << 10;

/// The memory of one process.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    file: File,
}

impl Memory {
    /// Open the memory of a process, as a file of the kernel's gives it: `/proc/PID/mem`.
    ///
    /// # Errors
    /// No such process, or no right to read it.
    pub fn open(pid: u32, path: &Path) -> io::Result<Self> {
        File::open(path).map(|file| Self { pid, file })
    }

    /// Fill the buffer from this address of the process.
    ///
    /// # Errors
    /// The process has ended, or nothing is mapped there (any more).
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Result<()> {
        if buffer.len() >= LONG_BYTES
            && copy_by_id(self.pid, address, buffer)
            && matches!(self.file.read_at(&mut [0], address), Ok(1))
        {
            return Ok(());
        }
        // Also where the call above is not allowed (a container's seccomp filter), and for its errors.
        self.file.read_exact_at(buffer, address).map_err(explain)
    }
}

/// Fill the buffer from the memory of the process that has this id now; return whether all of it could be read.
fn copy_by_id(pid: u32, address: u64, buffer: &mut [u8]) -> bool {
    let local = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: buffer.len(),
    };
    // SAFETY: the kernel writes into `buffer` only, at most its length; `remote` names memory of the other process.
    let read = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(read) == Ok(buffer.len())
}

/// Say what a failed read means. A process that ended has no memory: its file is empty. Addresses beyond those of any
/// process are EINVAL (fs/read_write.c: `ksys_pread64`), others without memory EIO.
fn explain(error: io::Error) -> ProbeError {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return ProbeError::system(
            "the server ended while its memory was read",
            io::Error::from_raw_os_error(libc::ESRCH),
        );
    }
    if matches!(
        error.raw_os_error(),
        Some(libc::EFAULT | libc::EIO | libc::EINVAL)
    ) {
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

    /// Return the last `LONG_BYTES` of the process's stack, which is read and written.
    fn stack(pid: u32) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        let line = maps
            .lines()
            .find(|l| l.ends_with("[stack]"))
            .expect("stack");
        let range = line.split(' ').next().expect("range");
        let end = range.split('-').nth(1).expect("end");
        u64::from_str_radix(end, 16).expect("hex") - LONG_BYTES as u64
    }

    fn memory(pid: u32) -> Memory {
        Memory::open(pid, Path::new(&format!("/proc/{pid}/mem"))).expect("open")
    }

    #[test]
    fn what_is_read_is_what_lies_there() {
        let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
        let mut copy = vec![0; data.len()];
        memory(std::process::id())
            .read(data.as_ptr() as u64, &mut copy)
            .expect("read");
        assert_eq!(copy, data);
    }

    #[test]
    fn an_address_without_memory_is_an_error() {
        let memory = memory(std::process::id());
        for address in [
            64,
            1 << 46,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 3,
            u64::MAX,
        ] {
            let error = memory.read(address, &mut [0; 8]).expect_err("unmapped");
            assert!(
                error.to_string().contains("no longer where it was"),
                "{address:x}: {error}"
            );
        }
    }

    #[test]
    fn a_long_read_of_an_id_that_is_now_another_process_is_an_error() {
        let (first, second) = (waiter(), waiter());
        // As if the second had got the id of the first.
        let memory = Memory {
            pid: second.id(),
            ..memory(first.id())
        };
        let stack = stack(second.id());
        let mut bytes = vec![0; LONG_BYTES];
        assert!(
            copy_by_id(second.id(), stack, &mut bytes),
            "the second is read"
        );
        end(first);
        let error = memory.read(stack, &mut bytes).expect_err("ended");
        assert!(error.to_string().contains("the server ended"), "{error}");
        end(second);
    }

    #[test]
    fn an_ended_process_has_no_memory() {
        let child = waiter();
        let pid = child.id();
        let memory = memory(pid);
        let address = mapping(pid);
        memory.read(address, &mut [0; 8]).expect("still there");
        end(child);
        let error = memory.read(address, &mut [0; 8]).expect_err("ended");
        assert!(
            error
                .to_string()
                .contains("the server ended while its memory was read"),
            "{error}"
        );
    }
}
