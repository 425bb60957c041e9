//! Arrays over foreign memory.

use std::panic::Location;
use std::sync::Arc;

use gpuheap_driver::{CUmemorytype, CUpointer_attribute, check};
use ndarray::IntoDimension;

use super::DeviceArray;
use super::element::Element;
use super::shape::{check_alignment, sizes};
use super::storage::{Memory, Owner, Storage};
use crate::array::target::Target;
use crate::error::{Error, ErrorKind};
use crate::kind::MemoryKind;
use crate::program::Callback;
use crate::stream::Stream;

impl Target {
    /// Makes an array over foreign memory of the target's device. Dropping, freeing or releasing
    /// the array does not free the memory. The driver reports the kind of memory. Page-locked
    /// memory of any origin counts as pinned. The target's stream counts as the stream of the
    /// memory's last use.
    ///
    /// # Safety
    ///
    /// The memory has room for the shape. It holds valid elements before the stream reaches the
    /// first work on it, and exists until all work on the array has completed. Meanwhile, other
    /// code uses it only in the order of the array's [stream](super::ArrayBase::stream).
    ///
    /// # Errors
    ///
    /// The driver does not know the address; the address is of another device, is not aligned for
    /// `T`, or is null while the shape has elements; the shape is larger than any memory.
    #[track_caller]
    pub unsafe fn wrap<T: Element, I: IntoDimension>(
        &self,
        address: u64,
        shape: I,
    ) -> Result<DeviceArray<T, I::Dim>, Error> {
        self.foreign(address, shape.into_dimension(), None)
    }

    /// Makes an array over foreign memory with an owner, a callback. The owner is called once, when
    /// the memory is freed by a drop, a call or a scope's end. Its arguments are the memory's
    /// address and a stream that is ordered after every use of the memory. The device's context is
    /// current during the call. The owner must not wait for another thread that uses the array.
    ///
    /// After a fork or a [reset](crate::Device::reset) the owner is not called, because the memory
    /// no longer exists.
    ///
    /// # Safety
    ///
    /// The requirements of [`wrap`](Target::wrap), until the owner is called.
    ///
    /// # Errors
    ///
    /// The errors of [`wrap`](Target::wrap), and an error if the target's scope has ended. If an
    /// error is returned, the owner is dropped without a call.
    #[track_caller]
    pub unsafe fn wrap_owned<T: Element, I: IntoDimension>(
        &self,
        address: u64,
        shape: I,
        owner: impl FnOnce(u64, &Stream) + Send + 'static,
    ) -> Result<DeviceArray<T, I::Dim>, Error> {
        self.foreign(address, shape.into_dimension(), Some(Callback::new(Box::new(owner))))
    }

    #[track_caller]
    fn foreign<T: Element, D: ndarray::Dimension>(
        &self,
        address: u64,
        shape: D,
        owner: Option<Owner>,
    ) -> Result<DeviceArray<T, D>, Error> {
        let (_, bytes) = sizes::<T, _>(&shape)?;
        self.heap.store(MemoryKind::Device).check_stream(&self.stream)?;
        let kind = match bytes {
            0 => self.kind,
            bytes => self.kind_of_foreign::<T>(address, bytes)?,
        };
        let owned = owner.is_some();
        let memory = Memory::Foreign { address, owner };
        let storage = Arc::new(Storage::new(self, kind, bytes, memory, Location::caller()));
        // The end of a scope frees arrays. Foreign memory without an owner needs no free, so its
        // array joins no scope.
        if owned && let Err(error) = self.join(&storage) {
            storage.disown();
            return Err(error);
        }
        Ok(DeviceArray::over(storage, shape))
    }

    fn kind_of_foreign<T>(&self, address: u64, bytes: u64) -> Result<MemoryKind, Error> {
        let refused = |why: String| -> Error {
            ErrorKind::BadPointer.error(format!("{address:#x} cannot be wrapped: {why}"))
        };
        if address == 0 {
            return Err(refused(format!("it is null, and the shape takes {bytes} bytes")));
        }
        check_alignment::<T>(address).map_err(|error| refused(error.to_string()))?;
        let last = address
            .checked_add(bytes - 1)
            .ok_or_else(|| refused(format!("{bytes} bytes from there are past every address")))?;
        for asked in [address, last] {
            let found = Attributes::query(&self.stream, asked)?;
            match found.memory_type {
                CUmemorytype::HOST | CUmemorytype::DEVICE => {}
                _ if asked == address => {
                    return Err(refused(
                        "the driver does not know it; was it freed, or is it pageable memory of the \
                         host?"
                            .to_owned(),
                    ));
                }
                _ => {
                    return Err(refused(format!(
                        "the shape takes {bytes} bytes, and the driver knows nothing at {last:#x}, the \
                         last of them"
                    )));
                }
            }
            let context = self.stream.context();
            if found.kind() == MemoryKind::Device && found.device != context.ordinal() {
                return Err(ErrorKind::WrongDevice.error(format!(
                    "{address:#x} cannot be wrapped: it is memory of device {}, and the target is of \
                     {context}; use a target of a heap of that device, and copy_to to bring it here",
                    found.device
                )));
            }
            // Host code reads pinned arrays at the device's address. Both addresses must be equal.
            if found.kind() == MemoryKind::Pinned && found.host != asked {
                return Err(refused(format!(
                    "the host sees it at {:#x}, and an array needs one address for the host and the \
                     device; copy it to pinned memory of the heap",
                    found.host
                )));
            }
            if asked == last {
                return Ok(found.kind());
            }
        }
        Ok(self.kind)
    }
}

/// Attributes that the driver reports for an address.
struct Attributes {
    memory_type: CUmemorytype,
    managed: i32,
    device: i32,
    host: u64,
}

impl Attributes {
    fn query(stream: &Stream, address: u64) -> Result<Attributes, Error> {
        let mut found = Attributes { memory_type: CUmemorytype(0), managed: 0, device: 0, host: 0 };
        type A = CUpointer_attribute;
        let mut names = [A::MEMORY_TYPE, A::IS_MANAGED, A::DEVICE_ORDINAL, A::HOST_POINTER];
        let mut values = [
            (&raw mut found.memory_type).cast(),
            (&raw mut found.managed).cast(),
            (&raw mut found.device).cast(),
            (&raw mut found.host).cast(),
        ];
        let _current = stream.context().enter()?;
        // SAFETY: there is one value for each name, of the type that the name requires.
        let asked = unsafe {
            let (names_at, values_at) = (names.as_mut_ptr(), values.as_mut_ptr());
            stream.context().driver().cuPointerGetAttributes(
                names.len() as u32,
                names_at,
                values_at,
                address,
            )
        };
        check("cuPointerGetAttributes", asked)?;
        Ok(found)
    }

    fn kind(&self) -> MemoryKind {
        match self.memory_type {
            _ if self.managed != 0 => MemoryKind::Unified,
            CUmemorytype::HOST => MemoryKind::Pinned,
            _ => MemoryKind::Device,
        }
    }
}
