//! The memory of a sandbox's first two processes while they share memory with the process that made
//! them.

use std::{
    ffi::c_void,
    os::fd::{AsFd, FromRawFd as _, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use rustix::{
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap},
    process::Pid,
};

use super::{
    Errno,
    arch::MAX_PAGE_BYTES,
    process::{Namespaces, spawn_sharing_memory},
};

/// Size of each of the two stacks. Pages are allocated on use, so unused ones cost address space
/// only.
const STACK_BYTES: usize = 256 * 1024;
/// Size of the inaccessible area below each stack: an overflow kills the process instead of
/// corrupting its neighbour. At least one page, whatever the kernel's page size.
const GUARD_BYTES: usize = MAX_PAGE_BYTES;
/// Maximum length of a request in one message. Longer ones come as a memory file.
pub(crate) const MAX_INLINE_IMAGE_BYTES: usize = 64 * 1024;

/// The code of a process in an arena. It must follow the rules of [`super`]: raw system calls, no
/// allocation, no lock, no thread-local storage.
pub(crate) type EntryPoint<S> = fn(&'static SharedArea<S>) -> !;

/// Buffer for a request, aligned as the lists of addresses in it must be.
#[derive(Debug)]
#[repr(align(8))]
struct ImageBuffer([u8; MAX_INLINE_IMAGE_BYTES]);

/// Memory for the two processes of one sandbox: two stacks, a [`SharedArea`], and a request buffer.
///
/// ```text
/// | guard | stack of the first | guard | stack of the second | shared area | image |
/// ```
#[derive(Debug)]
pub(crate) struct ProcessArena<S: 'static> {
    base: NonNull<c_void>,
    first_process: Option<Pid>,
    _state: std::marker::PhantomData<S>,
}

/// State that the two processes and their creator share.
#[derive(Debug)]
pub(crate) struct SharedArea<S: 'static> {
    pub(crate) state: S,
    first: EntryPoint<S>,
    second: EntryPoint<S>,
    /// The request buffer. It lies after this area and not in it, so that it is not rewritten for
    /// each sandbox.
    image: NonNull<ImageBuffer>,
    image_taken: AtomicBool,
    mapped_address: AtomicUsize,
    mapped_bytes: AtomicUsize,
}

// SAFETY: what `image` points to is handed out once, by a swap of `image_taken`; the rest is
// immutable or atomic, and `S` is Sync.
unsafe impl<S: Sync> Sync for SharedArea<S> {}

// === impl ProcessArena ===

impl<S: Sync + 'static> ProcessArena<S> {
    const SHARED_AREA_OFFSET: usize = 2 * (GUARD_BYTES + STACK_BYTES);
    const IMAGE_OFFSET: usize =
        (Self::SHARED_AREA_OFFSET + size_of::<SharedArea<S>>()).next_multiple_of(MAX_PAGE_BYTES);
    const MAPPING_BYTES: usize = Self::IMAGE_OFFSET + size_of::<ImageBuffer>();

    /// Maps the memory. No page is touched until a process is started.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                Self::MAPPING_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;

        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        let arena = Self { base, first_process: None, _state: std::marker::PhantomData };

        for guard in [0, GUARD_BYTES + STACK_BYTES] {
            let page = arena.address_of(guard).as_ptr();
            // SAFETY: the page lies in the mapping just made, and holds nothing that could be lost.
            unsafe { mprotect(page, GUARD_BYTES, MprotectFlags::empty()) }?;
        }
        Ok(arena)
    }

    /// The address `offset` bytes into the mapping. Panics if it lies outside.
    fn address_of(&self, offset: usize) -> NonNull<c_void> {
        assert!(offset < Self::MAPPING_BYTES, "offsets lie in the mapping");
        // SAFETY: the address lies in the mapping of this arena.
        unsafe { self.base.byte_add(offset) }
    }

    fn shared_area(&self) -> NonNull<SharedArea<S>> {
        self.address_of(Self::SHARED_AREA_OFFSET).cast()
    }

    pub(crate) fn is_occupied(&self) -> bool {
        self.first_process.is_some()
    }

    /// The state of its processes, if there are any.
    pub(crate) fn state(&self) -> Option<&S> {
        // SAFETY: the area was written when the first process was started, and stays until it has
        // ended. `S` is Sync.
        self.is_occupied().then(|| unsafe { &self.shared_area().as_ref().state })
    }

    /// Starts a process that runs `first` in `namespaces` of its own. It may start `second` with
    /// [`SharedArea::start_second`].
    ///
    /// `namespaces` must include the process namespace: then the end of the first process is the
    /// end of the second, and the arena is free.
    pub(crate) fn start(
        &mut self,
        state: S,
        first: EntryPoint<S>,
        second: EntryPoint<S>,
        namespaces: Namespaces,
    ) -> Result<(OwnedFd, Pid), Errno> {
        if self.is_occupied() || namespaces & libc::CLONE_NEWPID == 0 {
            return Err(Errno::BUSY);
        }

        let area = self.write_shared_area(state, first, second);
        let stack_top = self.address_of(GUARD_BYTES + STACK_BYTES);
        let mut pidfd: i32 = -1;
        // SAFETY: the stack is free while `first_process` is none, its top is 16-byte aligned
        // (page-aligned), the shared area stays until the arena is free again, and `run_first`
        // never returns. That entries follow the rules is part of the contract of `EntryPoint`.
        let child = unsafe {
            spawn_sharing_memory(
                run_first::<S>,
                area.as_ptr().cast(),
                stack_top.as_ptr(),
                namespaces,
                Some(&mut pidfd),
            )
        }?;

        self.first_process = Some(child);
        // SAFETY: the kernel has just made this descriptor for us.
        Ok((unsafe { OwnedFd::from_raw_fd(pidfd) }, child))
    }

    /// Makes this process the first process of a new arena that is never reused. Like a process
    /// made by [`Self::start`], it may start the second. It must wait for the second's end before
    /// it does anything that the rules of [`super`] forbid.
    pub(crate) fn become_first_process(
        state: S,
        second: EntryPoint<S>,
    ) -> Result<&'static SharedArea<S>, Errno> {
        let mut arena = Self::new()?;
        let area = arena.write_shared_area(state, second, second);
        // SAFETY: the shared area has just been written, and its mapping is never unmapped.
        Ok(unsafe { area.as_ref() })
    }

    /// Writes the shared area of an arena that is not in use.
    fn write_shared_area(
        &mut self,
        state: S,
        first: EntryPoint<S>,
        second: EntryPoint<S>,
    ) -> NonNull<SharedArea<S>> {
        let area = SharedArea {
            state,
            first,
            second,
            image: self.address_of(Self::IMAGE_OFFSET).cast(),
            image_taken: AtomicBool::new(false),
            mapped_address: AtomicUsize::new(0),
            mapped_bytes: AtomicUsize::new(0),
        };

        let address = self.shared_area();
        // SAFETY: the memory is large enough, aligned, and not in use: no process uses the arena.
        unsafe { address.write(area) };
        address
    }

    /// Notes that `ended`, a child of this process, has ended and was reaped.
    pub(crate) fn on_child_ended(&mut self, ended: Pid) {
        if self.first_process == Some(ended) {
            self.first_process = None;
            // SAFETY: the shared area was written when the first process was started; its processes
            // are gone, so nothing else uses it.
            unsafe { self.shared_area().as_ref() }.unmap_image();
        }
    }
}

unsafe extern "C" fn run_first<S: Sync + 'static>(area: *mut c_void) -> ! {
    // SAFETY: `start` has passed a shared area that lives as long as this process.
    let area: &'static SharedArea<S> = unsafe { &*area.cast::<SharedArea<S>>() };
    (area.first)(area)
}

unsafe extern "C" fn run_second<S: Sync + 'static>(area: *mut c_void) -> ! {
    // SAFETY: `start_second` has passed the shared area of the first process, and it outlives its
    // namespace's processes.
    let area: &'static SharedArea<S> = unsafe { &*area.cast::<SharedArea<S>>() };
    (area.second)(area)
}

// === impl SharedArea ===

impl<S: Sync + 'static> SharedArea<S> {
    /// Starts the second process, which shares the first one's namespaces. Only the first process
    /// calls this, and only while there is no second process: it must have reaped the one before.
    pub(crate) fn start_second(&'static self) -> Result<Pid, Errno> {
        self.unmap_image();
        self.image_taken.store(false, Ordering::Relaxed);
        // The second stack ends where the shared area begins.
        let area = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: the stack belongs to this arena and nothing else uses it, its top is
        // page-aligned, and `run_second` never returns.
        unsafe { spawn_sharing_memory(run_second::<S>, area, area, 0, None) }
    }

    /// The request buffer. Returns `None` if this second process has taken it before.
    #[expect(clippy::mut_from_ref, reason = "handed out once: the swap guards it")]
    pub(crate) fn take_image(&self) -> Option<&mut [u8; MAX_INLINE_IMAGE_BYTES]> {
        if self.image_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the buffer is aligned and as large as an image. The mapping was zeroed, so all of
        // it is initialised. The swap has shown that this is the only reference that the second
        // process has made. Those of processes before it are gone with them.
        let image = unsafe { &mut *self.image.as_ptr() };
        Some(&mut image.0)
    }

    /// Maps the first `bytes` of `file` privately, until [`Self::unmap_image`]. Fails with EBUSY if
    /// a file is mapped.
    #[expect(clippy::mut_from_ref, reason = "handed out once: the exchange guards it")]
    pub(crate) fn map_image(&self, file: impl AsFd, bytes: usize) -> Result<&mut [u8], Errno> {
        self.mapped_bytes
            .compare_exchange(0, bytes, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| Errno::BUSY)?;

        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }?;
        self.mapped_address.store(address as usize, Ordering::Relaxed);

        // SAFETY: the mapping is `bytes` long, ours alone, and its file is sealed, so no page of it
        // can vanish.
        Ok(unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), bytes) })
    }

    /// Unmaps the file of [`Self::map_image`]. The process that used it must be gone, or have
    /// executed another program.
    pub(crate) fn unmap_image(&self) {
        let address = self.mapped_address.swap(0, Ordering::Relaxed);
        let bytes = self.mapped_bytes.swap(0, Ordering::Relaxed);
        if address != 0 {
            // A failure cannot be reported here, where two processes share this memory.
            // SAFETY: the mapping was made by `map_image` and its only user is gone.
            let _unmapped = unsafe { munmap(address as *mut c_void, bytes) };
        }
    }
}
