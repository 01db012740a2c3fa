//! Receives a message by a call that a filter can tell from those of commands.
//!
//! A filter cannot see who makes a call. But of an `int` the kernel uses half of a register, and a
//! filter sees all of it. The process that is to become a command puts a secret into the rest. The
//! filter lets its call pass, and reports the calls of commands, which do not know the secret.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::{
    io::retry_on_intr,
    rand::{GetRandomFlags, getrandom},
};

use super::{Errno, syscall::syscall};

/// The secret: the upper halves of the first and the third argument of recvmsg(2).
///
/// All sandboxes of a workspace have the same. A wrong guess of a command is reported, unless a filter
/// of its own suppresses the call, so the mark has more bits than can be guessed. The default is no
/// mark.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReceiveMark {
    pub(crate) socket: u32,
    pub(crate) flags: u32,
}

impl ReceiveMark {
    /// Makes a new one.
    pub(crate) fn generate() -> Result<Self, Errno> {
        let mut bytes = [0; 8];
        // Up to 256 bytes are always complete (getrandom(2)).
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let value = u64::from_ne_bytes(bytes);
        Ok(Self { socket: (value >> 32) as u32, flags: value as u32 })
    }

    /// Both halves, as the copy of a warm shell gets them (warm_shell.c).
    pub(crate) fn to_number(self) -> u64 {
        u64::from(self.socket) << 32 | u64::from(self.flags)
    }
}

/// `struct user_msghdr` of linux/socket.h.
#[repr(C)]
struct MessageHeader {
    name: usize,
    name_bytes: usize,
    parts: *mut Part,
    part_count: usize,
    control: *mut Rights,
    control_bytes: usize,
    flags: usize,
}

/// `struct iovec` (readv(2)).
#[repr(C)]
struct Part {
    start: *mut u8,
    bytes: usize,
}

/// `struct cmsghdr` with the descriptors that follow (cmsg(3)).
#[repr(C)]
#[derive(Default)]
struct Rights {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; 6],
}
const RIGHTS_HEADER_BYTES: usize = 16;

/// Receives one message, and passes each descriptor to `on_fd`. Returns its length in bytes: 0 if
/// the peer is gone. Fails with EMFILE if descriptors were lost. Does not allocate.
pub(crate) fn receive_marked(
    socket: BorrowedFd<'_>,
    mark: ReceiveMark,
    bytes: &mut [u8],
    on_fd: impl FnMut(OwnedFd),
) -> Result<usize, Errno> {
    let mut part = Part { start: bytes.as_mut_ptr(), bytes: bytes.len() };
    let mut rights = Rights::default();
    let mut message = MessageHeader {
        name: 0,
        name_bytes: 0,
        parts: &raw mut part,
        part_count: 1,
        control: &raw mut rights,
        control_bytes: size_of::<Rights>(),
        flags: 0,
    };
    let arguments = [
        socket.as_raw_fd() as u32 as usize | (mark.socket as usize) << 32,
        (&raw mut message) as usize,
        libc::MSG_CMSG_CLOEXEC as usize | (mark.flags as usize) << 32,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads the header and writes to it, to `rights` and to `bytes`, within the
    // sizes in the header. All are alive here.
    let length = retry_on_intr(|| unsafe { syscall(libc::SYS_recvmsg, arguments) })?;

    if message.control_bytes > 0
        && (rights.level, rights.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
    {
        let count = rights.length.saturating_sub(RIGHTS_HEADER_BYTES) / size_of::<i32>();
        // SAFETY: the kernel has just made these descriptors for us.
        let owned = |fd: &i32| unsafe { OwnedFd::from_raw_fd(*fd) };
        rights.descriptors.iter().take(count).map(owned).for_each(on_fd);
    }
    // The kernel drops descriptors beyond this process's limit, and only sets this flag.
    if message.flags & libc::MSG_CTRUNC as usize != 0 {
        return Err(Errno::MFILE);
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{IoSlice, Read as _, Write as _},
        os::{fd::AsFd as _, unix::net::UnixStream},
    };

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn the_kernel_ignores_the_mark() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (mut kept, passed) = UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [passed.as_fd(), sender.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&sender, &[IoSlice::new(b"text")], &mut ancillary, SendFlags::empty()).unwrap();

        let mark = ReceiveMark { socket: u32::MAX, flags: u32::MAX };
        let (mut bytes, mut received) = ([0; 16], Vec::new());
        let length = receive_marked(receiver.as_fd(), mark, &mut bytes, |fd| received.push(fd));
        assert_eq!(bytes.get(..length.unwrap()), Some(&b"text"[..]));
        assert_eq!(received.len(), 2);
        drop(passed);
        UnixStream::from(received.remove(0)).write_all(b"x").unwrap();
        kept.read_exact(&mut [0; 1]).unwrap();

        received.clear();
        drop(sender);
        let length = receive_marked(receiver.as_fd(), mark, &mut bytes, |fd| received.push(fd));
        assert_eq!((length, received.len()), (Ok(0), 0));
    }
}
