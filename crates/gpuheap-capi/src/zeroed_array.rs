//! An array of zeros. The system provides each page at its first use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{NonNull, slice_from_raw_parts_mut};

/// Array of `COUNT` values, each all zeros at first.
///
/// A boxed array would write all its values. For 2 MiB, these writes took 0.7 ms of the 1 ms that
/// `gpuheap_open` took (emulated device, 2026-11-23).
pub(crate) struct ZeroedArray<T, const COUNT: usize> {
    /// Start of the allocated memory.
    memory: NonNull<u8>,
    /// The first value, aligned within the memory.
    first: NonNull<T>,
    owned: PhantomData<T>,
}

// SAFETY: the array owns its values, as a box does.
unsafe impl<T: Send, const COUNT: usize> Send for ZeroedArray<T, COUNT> {}
// SAFETY: a shared array gives only shared access to its values.
unsafe impl<T: Sync, const COUNT: usize> Sync for ZeroedArray<T, COUNT> {}

impl<T, const COUNT: usize> ZeroedArray<T, COUNT> {
    /// Layout with a small alignment, and with room to align the values in it. If the alignment is
    /// large, allocators write the zeros themselves, and so touch every page.
    const LAYOUT: Layout = {
        let bytes = COUNT * size_of::<T>() + align_of::<T>();
        match Layout::from_size_align(bytes, align_of::<usize>()) {
            Ok(layout) => layout,
            Err(_) => panic!("the array is larger than the address space"),
        }
    };

    /// Makes an array in which every byte is 0.
    ///
    /// # Safety
    ///
    /// A `T` of zeros is valid.
    pub(crate) unsafe fn zeroed() -> ZeroedArray<T, COUNT> {
        // SAFETY: the layout has a size above 0.
        let memory = NonNull::new(unsafe { alloc_zeroed(Self::LAYOUT) });
        let Some(memory) = memory else { handle_alloc_error(Self::LAYOUT) };
        let skipped = memory.as_ptr().addr().wrapping_neg() % align_of::<T>();
        // SAFETY: fewer bytes than the alignment are skipped, and the layout has room for them.
        let first = unsafe { memory.add(skipped) }.cast();
        ZeroedArray { memory, first, owned: PhantomData }
    }
}

impl<T, const COUNT: usize> ZeroedArray<T, COUNT> {
    /// Frees the memory without dropping the values. Reading each value would make the system
    /// provide the pages that were never used.
    pub(crate) fn discard(self) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the memory was allocated with this layout, and is not used again.
        unsafe { dealloc(this.memory.as_ptr(), Self::LAYOUT) };
    }
}

impl<T, const COUNT: usize> Deref for ZeroedArray<T, COUNT> {
    type Target = [T; COUNT];

    #[inline]
    fn deref(&self) -> &[T; COUNT] {
        // SAFETY: the memory has `COUNT` aligned values, valid since `zeroed`.
        unsafe { self.first.cast().as_ref() }
    }
}

impl<T, const COUNT: usize> Drop for ZeroedArray<T, COUNT> {
    fn drop(&mut self) {
        // SAFETY: the values are valid and are not used again. The memory was allocated with this
        // layout.
        unsafe {
            slice_from_raw_parts_mut(self.first.as_ptr(), COUNT).drop_in_place();
            dealloc(self.memory.as_ptr(), Self::LAYOUT);
        }
    }
}
