//! Attributes of pointers.

use super::prelude::*;
use crate::state::pool::PoolMemory;
use crate::state::space::Kind;

/// Value of the attribute `DEVICE_ORDINAL` for memory that belongs to no device (measured).
const NO_DEVICE: c_int = -2;

/// Value of an attribute, in the type that the call writes.
#[derive(Clone, Copy)]
enum Value {
    Int(c_int),
    Long(u64),
}

/// Allocation or mapping at an address.
struct Found {
    base: u64,
    bytes: u64,
    /// Kind of the allocation; for mapped addresses, the kind of the reservation.
    kind: Kind,
    context: CUcontext,
    device: usize,
    id: u64,
    sync_memops: bool,
    /// Access of the allocation's device to the memory: `CU_MEM_ACCESS_FLAGS_PROT_*`.
    access: c_int,
}

impl Call<'_> {
    pub(crate) fn cuPointerGetAttribute(
        &mut self,
        (data, attribute, pointer): args::cuPointerGetAttribute,
    ) -> Outcome {
        self.initialised()?;
        data.require()?;
        let value = self.read_attribute(attribute, pointer)?.ok_or(INVALID_VALUE)?;
        write(data, value)
    }

    /// Writes attributes of a pointer. The pointer determines the context, so a current context is
    /// not needed. If an attribute does not apply, writes the value of [`nothing`] (measured).
    pub(crate) fn cuPointerGetAttributes(
        &mut self,
        (count, attributes, data, pointer): args::cuPointerGetAttributes,
    ) -> Outcome {
        self.initialised()?;
        fail_if(count == 0, INVALID_VALUE)?;
        for index in 0..count as usize {
            let attribute = attributes.at(index).get()?;
            let out = data.at(index).follow()?;
            let value = match self.read_attribute(attribute, pointer) {
                Err(CUresult::ERROR_INVALID_CONTEXT) => None,
                value => value?,
            };
            out.require()?;
            if let Some(value) = value.or_else(|| self.nothing(attribute, pointer)) {
                write(out, value)?;
            }
        }
        Ok(())
    }

    pub(crate) fn cuPointerSetAttribute(
        &mut self,
        (value, attribute, pointer): args::cuPointerSetAttribute,
    ) -> Outcome {
        self.initialised()?;
        fail_if(attribute != CUpointer_attribute::SYNC_MEMOPS, INVALID_VALUE)?;
        // SAFETY: the caller passes a pointer to an `unsigned int` for this attribute.
        let set = unsafe { value.cast::<c_uint>() }.get()? != 0;
        let (base, _) = self.state.space.find(pointer).ok_or(INVALID_VALUE)?;
        self.state.space.get_mut(base).ok_or(INVALID_VALUE)?.sync_memops = set;
        Ok(())
    }

    /// Returns the value of an attribute; `None` if the attribute does not apply. An unknown
    /// attribute is an error.
    fn read_attribute(
        &self,
        attribute: CUpointer_attribute,
        pointer: u64,
    ) -> Outcome<Option<Value>> {
        type A = CUpointer_attribute;
        let known = matches!(attribute, CUpointer_attribute(1..=4 | 6..=17));
        fail_if(!known, INVALID_VALUE)?;
        let Some(found) = self.find_pointer(pointer)? else { return Ok(None) };
        let pool = match found.kind {
            Kind::Pool { pool, .. } => self.state.pools.get(pool),
            _ => None,
        };
        let host = match pool {
            Some(pool) => matches!(pool.memory, PoolMemory::Host(_)),
            None => matches!(found.kind, Kind::Pinned { .. } | Kind::Registered { .. }),
        };
        // Memory of a host pool has a device address only after the pool granted access to a device
        // (measured).
        let given = |(_, flags): &(i32, i32)| *flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
        let unseen = host && pool.is_some_and(|pool| !pool.access.iter().any(given));
        Ok(Some(match attribute {
            A::CONTEXT => Value::Long(found.context.0 as u64),
            A::MEMORY_TYPE => {
                let kind = if host { CUmemorytype::HOST } else { CUmemorytype::DEVICE };
                Value::Int(kind.0)
            }
            // This attribute alone needs a current context (measured).
            A::DEVICE_POINTER => {
                let current = self.current()?;
                if unseen || !self.reaches(current, pointer) {
                    return Ok(None);
                }
                Value::Long(pointer)
            }
            A::HOST_POINTER if found.kind.is_host() => Value::Long(pointer),
            A::HOST_POINTER => return Ok(None),
            A::SYNC_MEMOPS => Value::Int(c_int::from(found.sync_memops)),
            A::BUFFER_ID => Value::Long(found.id),
            A::IS_MANAGED => Value::Int(c_int::from(match found.kind {
                Kind::Pool { pool, .. } => self.is_pool_managed(pool),
                kind => matches!(kind, Kind::Managed { .. }),
            })),
            A::DEVICE_ORDINAL => Value::Int(found.device as c_int),
            A::IS_LEGACY_CUDA_IPC_CAPABLE => Value::Int(c_int::from(matches!(
                found.kind,
                Kind::Small { .. } | Kind::Large { .. }
            ))),
            A::RANGE_START_ADDR => Value::Long(if unseen { 0 } else { found.base }),
            A::RANGE_SIZE => Value::Long(found.bytes),
            A::MAPPED => Value::Int(1),
            A::ALLOWED_HANDLE_TYPES | A::IS_GPU_DIRECT_RDMA_CAPABLE => Value::Int(0),
            A::ACCESS_FLAGS => Value::Int(found.access),
            // MEMPOOL_HANDLE is the last known attribute.
            _ => Value::Long(match found.kind {
                Kind::Pool { pool, .. } => pool as u64,
                _ => 0,
            }),
        }))
    }

    /// Returns the value that `cuPointerGetAttributes` writes for an attribute that does not apply;
    /// `None` if it writes nothing. For memory that the driver does not know, the attribute
    /// `HOST_POINTER` is the pointer itself.
    fn nothing(&self, attribute: CUpointer_attribute, pointer: u64) -> Option<Value> {
        type A = CUpointer_attribute;
        let found = self.state.space.find(pointer).filter(|(_, found)| found.freed.is_none());
        let is_mapped = self.state.vmm.find(pointer).is_some();
        let reserved = found.filter(|(_, found)| found.kind == Kind::Reserved && !is_mapped);
        Some(match attribute {
            A::DEVICE_ORDINAL => Value::Int(NO_DEVICE),
            A::HOST_POINTER if found.is_none() || reserved.is_some() => Value::Long(pointer),
            A::RANGE_START_ADDR => Value::Long(reserved?.0),
            A::RANGE_SIZE => Value::Long(reserved?.1.bytes),
            A::MEMORY_TYPE
            | A::SYNC_MEMOPS
            | A::IS_MANAGED
            | A::IS_LEGACY_CUDA_IPC_CAPABLE
            | A::MAPPED
            | A::ALLOWED_HANDLE_TYPES
            | A::IS_GPU_DIRECT_RDMA_CAPABLE
            | A::ACCESS_FLAGS => Value::Int(0),
            _ => Value::Long(0),
        })
    }

    /// Finds the allocation or mapping at an address. The allocation determines the context, so a
    /// current context is not needed (measured).
    fn find_pointer(&self, pointer: u64) -> Outcome<Option<Found>> {
        let found = self.state.space.find(pointer).filter(|(_, found)| found.freed.is_none());
        let Some((base, allocation)) = found else { return Ok(None) };
        self.alive(allocation.context)?;
        // Pool memory belongs to the device and so has no context (measured).
        let context = match self.state.contexts.at(allocation.context) {
            Some(_) if !matches!(allocation.kind, Kind::Pool { .. }) => {
                CUcontext(self.state.contexts.handle(allocation.context))
            }
            _ => CUcontext::NULL,
        };
        let mut found = Found {
            base,
            bytes: allocation.bytes,
            kind: allocation.kind,
            context,
            device: allocation.device,
            id: allocation.id,
            sync_memops: allocation.sync_memops,
            access: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        if allocation.kind == Kind::Reserved {
            let Some((start, mapping)) = self.state.vmm.find(pointer) else { return Ok(None) };
            (found.base, found.bytes, found.device) = (start, mapping.bytes, mapping.device);
            // The driver reports the access that the current context's device has (measured).
            let device = self.current().map_or(mapping.device, |current| self.device_of(current));
            found.access = mapping.access[device];
        }
        Ok(Some(found))
    }
}

fn write(data: Out<c_void>, value: Value) -> Outcome {
    // SAFETY: `value` has the type to which the caller passes a pointer for the attribute.
    unsafe {
        match value {
            Value::Int(value) => data.cast::<c_int>().write(value),
            Value::Long(value) => data.cast::<u64>().write(value),
        }
    }
}
