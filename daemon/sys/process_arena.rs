//! The memory in which a sandbox's first two processes run while they share the memory of the
//! process that made them.

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
    process::{Namespaces, spawn_sharing_memory},
};

/// Bytes of each of the two stacks. Both are touched page by page, so unused ones cost address
/// space only.
const STACK_BYTES: usize = 256 * 1024;
/// Below each stack lies a page that cannot be touched: running over ends the process instead of
/// damaging its neighbour.
const GUARD_BYTES: usize = 4096;
/// Bytes of a request that travels in one message; larger ones come as a memory file.
pub(crate) const MAX_INLINE_IMAGE_BYTES: usize = 64 * 1024;

/// What a process in a berth runs. It must follow the rules of [`super`]: raw system calls, no
/// allocation, no lock, no thread-local storage.
pub(crate) type EntryPoint<S> = fn(&'static SharedArea<S>) -> !;

/// A request, aligned as the lists of addresses in it must be.
#[derive(Debug)]
#[repr(align(8))]
struct ImageBuffer([u8; MAX_INLINE_IMAGE_BYTES]);

/// Room for the two processes of one sandbox: two stacks, a [`Cabin`], and room for a request.
///
/// ```text
/// | guard | stack of the first | guard | stack of the second | cabin | image |
/// ```
#[derive(Debug)]
pub(crate) struct ProcessArena<S: 'static> {
    base: NonNull<c_void>,
    first_process: Option<Pid>,
    _state: std::marker::PhantomData<S>,
}

/// What the two processes and their maker see of a berth.
#[derive(Debug)]
pub(crate) struct SharedArea<S: 'static> {
    /// What they tell one another.
    pub(crate) state: S,
    first: EntryPoint<S>,
    second: EntryPoint<S>,
    /// Lies behind the cabin, and not in it: so it need not be written with each new cabin.
    image: NonNull<ImageBuffer>,
    image_taken: AtomicBool,
    mapped_address: AtomicUsize,
    mapped_bytes: AtomicUsize,
}

// SAFETY: what `image` points to is handed out once, by a swap of `image_taken`; the rest is
// immutable or atomic, and `S` is Sync.
unsafe impl<S: Sync> Sync for SharedArea<S> {}

// === impl Berth ===

impl<S: Sync + 'static> ProcessArena<S> {
    const SHARED_AREA_OFFSET: usize = 2 * (GUARD_BYTES + STACK_BYTES);
    const IMAGE_OFFSET: usize =
        (Self::SHARED_AREA_OFFSET + size_of::<SharedArea<S>>()).next_multiple_of(4096);
    const MAPPING_BYTES: usize = Self::IMAGE_OFFSET + size_of::<ImageBuffer>();

    /// Maps the memory. Nothing of it is touched until a process moves in.
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
        for guard in [0, GUARD_BYTES + STACK_BYTES] {
            // SAFETY: the page lies in the mapping just made, which nothing uses yet.
            let page = unsafe { base.byte_add(guard) };
            // SAFETY: as above; nothing is there to be lost.
            unsafe { mprotect(page, GUARD_BYTES, MprotectFlags::empty()) }?;
        }
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, first_process: None, _state: std::marker::PhantomData })
    }

    /// Whether a process lives here.
    pub(crate) fn is_occupied(&self) -> bool {
        self.first_process.is_some()
    }

    /// Starts a process that runs `first` in `namespaces` of its own; `second` is what it may start
    /// with [`Cabin::start_second`].
    ///
    /// The process namespace must be among `namespaces`: the end of the first process is then the
    /// end of the second, and the berth is free.
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
        let place = self.write_shared_area(state, first, second);
        // SAFETY: one past the end of the first stack, in the same mapping.
        let stack_top = unsafe { self.base.byte_add(GUARD_BYTES + STACK_BYTES) };
        let mut pidfd: i32 = -1;
        // SAFETY: the stack is free while `occupant` is none, its top is 16-byte aligned
        // (page-aligned), the cabin stays until the berth is free again, and `run_first` never
        // returns. That entries follow the rules is part of the contract of `Entry`.
        let child = unsafe {
            spawn_sharing_memory(
                run_first::<S>,
                place.as_ptr().cast(),
                stack_top.as_ptr(),
                namespaces,
                Some(&mut pidfd),
            )
        }?;
        self.first_process = Some(child);
        // SAFETY: the kernel has just made this descriptor for us.
        Ok((unsafe { OwnedFd::from_raw_fd(pidfd) }, child))
    }

    /// Makes this process the first one of a berth that nobody has ever after. Like one that
    /// [`Self::start`] makes, it may start the second, whose end it must wait for before it does
    /// anything that the rules of [`super`] forbid.
    pub(crate) fn become_first_process(
        state: S,
        second: EntryPoint<S>,
    ) -> Result<&'static SharedArea<S>, Errno> {
        let mut berth = Self::new()?;
        let place = berth.write_shared_area(state, second, second);
        // SAFETY: the cabin has just been written, and its mapping is never unmapped.
        Ok(unsafe { place.as_ref() })
    }

    /// Writes the cabin of a berth that is not occupied.
    fn write_shared_area(
        &mut self,
        state: S,
        first: EntryPoint<S>,
        second: EntryPoint<S>,
    ) -> NonNull<SharedArea<S>> {
        // SAFETY: the address lies in the mapping of this berth.
        let image = unsafe { self.base.byte_add(Self::IMAGE_OFFSET) }.cast::<ImageBuffer>();
        let cabin = SharedArea {
            state,
            first,
            second,
            image,
            image_taken: AtomicBool::new(false),
            mapped_address: AtomicUsize::new(0),
            mapped_bytes: AtomicUsize::new(0),
        };
        // SAFETY: the address lies in the mapping of this berth, page-aligned.
        let place = unsafe { self.base.byte_add(Self::SHARED_AREA_OFFSET) }.cast::<SharedArea<S>>();
        // SAFETY: the place is large enough, aligned, and nobody's: the berth is not occupied.
        unsafe { place.write(cabin) };
        place
    }

    /// Tells the berth that `ended`, a child of this process, is gone and waited for.
    pub(crate) fn on_child_ended(&mut self, ended: Pid) {
        if self.first_process == Some(ended) {
            self.first_process = None;
            // SAFETY: the address lies in the mapping of this berth.
            let cabin =
                unsafe { self.base.byte_add(Self::SHARED_AREA_OFFSET) }.cast::<SharedArea<S>>();
            // SAFETY: the cabin was written when the occupant was started; its processes are gone,
            // so nobody else uses it.
            unsafe { cabin.as_ref() }.unmap_image();
        }
    }
}

unsafe extern "C" fn run_first<S: Sync + 'static>(cabin: *mut c_void) -> ! {
    // SAFETY: `start` has passed a cabin that lives as long as this process.
    let cabin: &'static SharedArea<S> = unsafe { &*cabin.cast::<SharedArea<S>>() };
    (cabin.first)(cabin)
}

unsafe extern "C" fn run_second<S: Sync + 'static>(cabin: *mut c_void) -> ! {
    // SAFETY: `start_second` has passed the cabin in which the first process lives, and it outlives
    // its namespace's processes.
    let cabin: &'static SharedArea<S> = unsafe { &*cabin.cast::<SharedArea<S>>() };
    (cabin.second)(cabin)
}

// === impl Cabin ===

impl<S: Sync + 'static> SharedArea<S> {
    /// Starts the second process, which shares the first one's namespaces. Only the first process
    /// calls this, once.
    pub(crate) fn start_second(&'static self) -> Result<Pid, Errno> {
        let cabin = std::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // The second stack ends where the cabin begins. SAFETY: the stack belongs to this berth and
        // is used by nobody else, its top is page-aligned, and `run_second` never returns.
        unsafe { spawn_sharing_memory(run_second::<S>, cabin, cabin, 0, None) }
    }

    /// Room for a request. Answers nothing when it was taken before.
    #[expect(clippy::mut_from_ref, reason = "handed out once: the swap guards it")]
    pub(crate) fn take_image(&self) -> Option<&mut [u8; MAX_INLINE_IMAGE_BYTES]> {
        if self.image_taken.swap(true, Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the place is aligned, as large as an image, and was zero when it was mapped, so
        // that all of it is initialised; the swap has shown that this is the only reference made in
        // this cabin's life, and those of the cabins before it are gone with their processes.
        let image = unsafe { &mut *self.image.as_ptr() };
        Some(&mut image.0)
    }

    /// Maps the first `bytes` of `file`, privately. Kept until [`Cabin::unmap_image`]. Answers
    /// nothing when one is mapped.
    #[expect(clippy::mut_from_ref, reason = "handed out once: the exchange guards it")]
    pub(crate) fn map_image(&self, file: impl AsFd, bytes: usize) -> Result<&mut [u8], Errno> {
        self.mapped_bytes
            .compare_exchange(0, bytes, Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| Errno::BUSY)?;
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
                file,
                0,
            )
        }?;
        self.mapped_address.store(at as usize, Ordering::Relaxed);
        // SAFETY: the mapping is `bytes` long, ours alone, and its file is sealed, so no page of it
        // can vanish.
        Ok(unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), bytes) })
    }

    /// Unmaps what [`Cabin::map_image`] mapped. The process that used it must be gone, or have
    /// executed another program.
    pub(crate) fn unmap_image(&self) {
        let at = self.mapped_address.swap(0, Ordering::Relaxed);
        let bytes = self.mapped_bytes.swap(0, Ordering::Relaxed);
        if at != 0 {
            // Nothing can be said about a failure here, where two processes share this memory.
            // SAFETY: the mapping was made by `map_image` and its only user is gone.
            let _unmapped = unsafe { munmap(at as *mut c_void, bytes) };
        }
    }
}
