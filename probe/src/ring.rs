//! The reading end of an eBPF ring buffer (Linux, kernel/bpf/ringbuf.c).
//!
//! The kernel maps three things: a page with the reader's position (writable by us), a page with the writers'
//! position, and the data twice in a row, so that an event which wraps around the end still reads as one piece.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use crate::error::{ProbeError, Result};
use crate::event::{Event, EVENT_BYTES};

const BUSY_BIT: u32 = 1 << 31;
const DISCARD_BIT: u32 = 1 << 30;
const HEADER_BYTES: u64 = 8;

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length_bytes: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, length_bytes: usize, writable: bool, offset: usize) -> Result<Self> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address of the kernel's choice; it is only reached through this object and
        // unmapped when it is dropped.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length_bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(ProbeError::last_os(
                "cannot map the ring buffer of the probes",
            ));
        }
        let start = NonNull::new(address.cast::<u8>())
            .ok_or_else(|| ProbeError::last_os("the ring buffer was mapped at address zero"))?;
        Ok(Self {
            start,
            length_bytes,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length_bytes) };
    }
}

// SAFETY: the mapping is plain memory; the shared positions in it are only accessed as atomics.
unsafe impl Send for Mapping {}

/// A ring buffer being read.
#[derive(Debug)]
pub struct RingBuffer {
    reader: Mapping,
    writer: Mapping,
    size_bytes: u64,
    page_bytes: usize,
    fd: OwnedFd,
}

impl RingBuffer {
    /// Map a ring buffer of the given size.
    ///
    /// # Errors
    /// The kernel refuses to map it.
    pub fn map(fd: OwnedFd, size_bytes: u32) -> Result<Self> {
        // SAFETY: no pointers are involved.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let reader = Mapping::new(&fd, page_bytes, true, 0)?;
        let writer = Mapping::new(&fd, page_bytes + 2 * size_bytes as usize, false, page_bytes)?;
        Ok(Self {
            reader,
            writer,
            size_bytes: u64::from(size_bytes),
            page_bytes,
            fd,
        })
    }

    /// Return the descriptor of the map.
    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn reader_position(&self) -> &AtomicU64 {
        // SAFETY: the mapping begins with the reader's position, aligned to a page, and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.reader.start.as_ptr().cast()) }
    }

    fn writer_position(&self) -> u64 {
        // SAFETY: the mapping begins with the writers' position, aligned to a page, and lives as long as `self`; the kernel
        // writes it atomically. In memory that we may not write, loads must be relaxed and no larger than a word
        // (std::sync::atomic, "Atomic accesses to read-only memory").
        let position = unsafe { AtomicU64::from_ptr(self.writer.start.as_ptr().cast()) }
            .load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        position
    }

    /// Give at most `most` finished events, oldest first, to `take`; return how many there were.
    ///
    /// Each is taken once, also where `take` panics.
    pub fn drain(&mut self, most: usize, mut take: impl FnMut(Event)) -> usize {
        let mut reading = Reading {
            position: self.reader_position().load(Ordering::Relaxed),
            ring: self,
        };
        let end = self.writer_position();
        let mut taken = 0;
        while reading.position < end && taken < most {
            let at = self.page_bytes + (reading.position & (self.size_bytes - 1)) as usize;
            // SAFETY: `at` is below the page plus the size, so header and event lie inside the mapping, whose data part
            // is mapped twice. Positions are multiples of 8, which aligns the header. Relaxed, as the writers' position.
            let (length, event) = unsafe {
                let header = self.writer.start.as_ptr().add(at);
                let length = AtomicU32::from_ptr(header.cast()).load(Ordering::Relaxed);
                let event = header
                    .add(HEADER_BYTES as usize)
                    .cast::<[u8; EVENT_BYTES]>();
                (length, event)
            };
            // The writer clears the busy bit last (kernel/bpf/ringbuf.c: `bpf_ringbuf_commit`): what it wrote before is read
            // after the bit was seen cleared.
            fence(Ordering::Acquire);
            if length & BUSY_BIT != 0 {
                break;
            }
            let size = u64::from(length & !(BUSY_BIT | DISCARD_BIT));
            // SAFETY: as above; the event is finished, so the kernel does not write it until we move our position.
            let bytes = (length & DISCARD_BIT == 0 && size == EVENT_BYTES as u64)
                .then(|| unsafe { event.read() });
            reading.position += (size + HEADER_BYTES).next_multiple_of(8);
            if let Some(event) = bytes.and_then(|bytes| Event::read(&bytes)) {
                taken += 1;
                // Give space back in steps, so that the writers' processors do not fight over the line at each event.
                if taken % 1024 == 0 {
                    reading.give_back();
                }
                take(event);
            }
        }
        taken
    }

    /// Return how full the ring buffer is, 0 to 1.
    pub fn fullness(&self) -> f64 {
        let used = self
            .writer_position()
            .wrapping_sub(self.reader_position().load(Ordering::Relaxed));
        used as f64 / self.size_bytes as f64
    }
}

/// How far the ring buffer has been read; the space before is given back to the writers when this goes.
struct Reading<'a> {
    ring: &'a RingBuffer,
    position: u64,
}

impl Reading<'_> {
    fn give_back(&self) {
        self.ring
            .reader_position()
            .store(self.position, Ordering::Release);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
