//! Copies.

use super::prelude::*;
use crate::emulator::{CopyToHost, note_copy_to_host};
use crate::state::access::{Is, Side};
use crate::state::host;
use crate::state::pool::PoolMemory;
use crate::state::space::{Kind, is_device_address};
use crate::state::stream::{CopyWork, Place, Work};

/// Size of a copy.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) width: u64,
    pub(super) height: u64,
}

/// Defines a synchronous and a stream-ordered copy in one dimension between two kinds of memory.
macro_rules! copies {
    ($($at_once:ident $in_order:ident: $target:expr, $source:expr;)*) => {
        impl Call<'_> {$(
            pub(crate) fn $at_once(
                &mut self,
                (target, source, bytes): args::$at_once,
            ) -> Outcome {
                let (target, source) = ($target(target), $source(source));
                self.require_access(&[target.address, source.address], CUstream::NULL)?;
                self.copy_and_wait(target, source, bytes)
            }

            pub(crate) fn $in_order(
                &mut self,
                (target, source, bytes, stream): args::$in_order,
            ) -> Outcome {
                let (target, source) = ($target(target), $source(source));
                self.require_access(&[target.address, source.address], stream)?;
                self.copy_row(target, source, bytes, stream, false)
            }
        )*}
    };
}

copies! {
    cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2: Side::device, |from: In<c_void>| Side::host(from.address());
    cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2: |to: Out<c_void>| Side::host(to.address()), Side::device;
    cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2: Side::device, Side::device;
}

impl Call<'_> {
    pub(crate) fn cuMemcpy(&mut self, (target, source, bytes): args::cuMemcpy) -> Outcome {
        self.require_access(&[target, source], CUstream::NULL)?;
        self.copy_and_wait(Side::any(target), Side::any(source), bytes)
    }

    pub(crate) fn cuMemcpyPeer(
        &mut self,
        (target, target_context, source, source_context, bytes): args::cuMemcpyPeer,
    ) -> Outcome {
        self.check_contexts(target_context, source_context)?;
        self.copy_and_wait(Side::device(target), Side::device(source), bytes)
    }

    pub(crate) fn cuMemcpy2D_v2(&mut self, copy: In<CUDA_MEMCPY2D>) -> Outcome {
        self.copy_rectangle(copy, CUstream::NULL, true)
    }

    pub(crate) fn cuMemcpy2DAsync_v2(
        &mut self,
        (copy, stream): args::cuMemcpy2DAsync_v2,
    ) -> Outcome {
        self.copy_rectangle(copy, stream, false)
    }

    pub(crate) fn cuMemcpyAsync(
        &mut self,
        (target, source, bytes, stream): args::cuMemcpyAsync,
    ) -> Outcome {
        self.require_access(&[target, source], stream)?;
        self.copy_row(Side::any(target), Side::any(source), bytes, stream, false)
    }

    pub(crate) fn cuMemcpyPeerAsync(
        &mut self,
        (target, target_context, source, source_context, bytes, stream): args::cuMemcpyPeerAsync,
    ) -> Outcome {
        self.check_contexts(target_context, source_context)?;
        self.copy_row(Side::device(target), Side::device(source), bytes, stream, false)
    }

    /// Checks the contexts of a copy between peers. The driver also accepts a null context, and a
    /// context that does not own the memory (measured on two H200, driver 580).
    fn check_contexts(&self, target: CUcontext, source: CUcontext) -> Outcome {
        for context in [target, source] {
            if !context.is_null() {
                self.context(context)?;
            }
        }
        Ok(())
    }

    /// Checks that the stream's device may use addresses of pools and mappings. Copies between
    /// peers, and of another device's plain memory, need no access (measured on two H200, driver
    /// 580).
    fn require_access(&mut self, addresses: &[u64], stream: CUstream) -> Outcome {
        let stream = self.stream(stream)?;
        let context = self.context_of(stream);
        for address in addresses {
            let found = self.state.space.find(*address).map(|(_, found)| found.kind);
            let is_plain = !matches!(found, Some(Kind::Pool { .. } | Kind::Reserved));
            let is_mapped =
                found != Some(Kind::Reserved) || self.state.vmm.find(*address).is_some();
            fail_if(!is_plain && is_mapped && !self.reaches(context, *address), INVALID_VALUE)?;
        }
        Ok(())
    }

    /// Returns whether work of a context may use the memory at an address. Plain memory of another
    /// context's device needs peer access to that context. Pool memory needs access to the pool,
    /// and mapped memory needs access to the mapping.
    pub(super) fn reaches(&self, context: u32, address: u64) -> bool {
        let device = self.device_of(context);
        let Some((_, found)) = self.state.space.find(address) else { return false };
        match found.kind {
            Kind::Small { .. } | Kind::Large { .. } => {
                let owner = self.state.contexts.handle(found.context);
                let peers = self.state.contexts.at(context).map(|context| &context.peers);
                found.device == device || peers.is_some_and(|peers| peers.contains(&owner))
            }
            Kind::Pool { pool, .. } => self.pool_reaches(pool, device),
            Kind::Reserved => self.state.vmm.find(address).is_some_and(|(_, mapping)| {
                mapping.access[device] != CU_MEM_ACCESS_FLAGS_PROT_NONE
            }),
            Kind::Managed { .. } | Kind::Pinned { .. } | Kind::Registered { .. } => true,
        }
    }

    /// Returns whether a device may use memory from a pool.
    fn pool_reaches(&self, pool: usize, device: usize) -> bool {
        self.state.pools.get(pool).is_none_or(|pool| {
            let granted = |(to, flags): &(i32, i32)| {
                *to as usize == device && *flags != CU_MEM_ACCESS_FLAGS_PROT_NONE
            };
            // The access of devices to host pools is stored but not enforced.
            !pool.is_of_device() || pool.device == device || pool.access.iter().any(granted)
        })
    }

    fn copy_and_wait(&mut self, target: Side, source: Side, bytes: usize) -> Outcome {
        self.copy_row(target, source, bytes, CUstream::NULL, true)
    }

    fn copy_row(
        &mut self,
        target: Side,
        source: Side,
        bytes: usize,
        stream: CUstream,
        wait: bool,
    ) -> Outcome {
        let stream = self.stream(stream)?;
        self.copy(target, source, Shape { width: bytes as u64, height: 1 }, stream, wait)
    }

    fn copy_rectangle(&mut self, copy: In<CUDA_MEMCPY2D>, raw: CUstream, wait: bool) -> Outcome {
        let stream = self.stream(raw)?;
        let copy = copy.get()?;
        let shape = Shape { width: copy.WidthInBytes as u64, height: copy.Height as u64 };
        let source = side(
            copy.srcMemoryType,
            (copy.srcHost.expose_provenance() as u64, copy.srcDevice),
            (copy.srcXInBytes, copy.srcY, copy.srcPitch),
            shape.width,
        )?;
        let target = side(
            copy.dstMemoryType,
            (copy.dstHost.expose_provenance() as u64, copy.dstDevice),
            (copy.dstXInBytes, copy.dstY, copy.dstPitch),
            shape.width,
        )?;
        self.require_access(&[target.address, source.address], raw)?;
        self.copy(target, source, shape, stream, wait)
    }

    fn copy(
        &mut self,
        target: Side,
        source: Side,
        shape: Shape,
        stream: u32,
        wait: bool,
    ) -> Outcome {
        if shape.width == 0 || shape.height == 0 {
            return Ok(());
        }
        // A copy refuses memory of a host pool as device memory, although fills accept it (measured
        // on one H200, driver 580).
        fail_if(
            [target, source].iter().any(|side| side.is == Is::Device && self.is_of_host_pool(side)),
            INVALID_VALUE,
        )?;
        let target = self.check_side(target, shape)?;
        let source = self.check_side(source, shape)?;
        self.begin(stream);
        self.note_copy(stream, target, source, shape.width, shape.height);
        // The device does not see pageable memory. So unless the copy runs now, the call reads a
        // pageable source at once. It waits for a copy into pageable memory.
        let read_now = self.is_pageable(source) && !self.can_run_now();
        // A copy within device memory does not make the host wait, not even in a synchronous call.
        let on_device = source.is == Is::Device && target.is == Is::Device;
        let wait = wait && !on_device || self.is_pageable(target);
        let work = CopyWork {
            source: match source.is {
                Is::Host if read_now => Place::Staged(stage(source, shape)),
                Is::Host => Place::Host(source.address),
                _ => Place::Device(source.address),
            },
            source_pitch: if read_now { shape.width } else { source.pitch },
            target: match target.is {
                Is::Host => Place::Host(target.address),
                _ => Place::Device(target.address),
            },
            target_pitch: target.pitch,
            width: shape.width,
            height: shape.height,
        };
        if source.is == Is::Device && target.is == Is::Host {
            self.state.counts.copies_to_host += 1;
            let is_flat = shape.height == 1 || target.pitch == shape.width;
            note_copy_to_host(CopyToHost {
                address: if is_flat { target.address } else { 0 },
                bytes: shape.width * shape.height,
                is_written: self.is_written(stream, source, shape),
            });
        }
        let op = self.enqueue(stream, Work::Copy(Box::new(work)), &[]);
        if wait {
            self.complete(op);
            self.host_waits_for_stream(stream);
        }
        self.alive(self.context_of(stream))
    }

    /// Returns whether copies and fills wrote all bytes that a copy from device memory reads. If
    /// kernels are not run, the content of other bytes is unknown.
    fn is_written(&self, stream: u32, source: Side, shape: Shape) -> bool {
        let pages = &self.state.pages;
        (0..shape.height).all(|row| {
            let at = source.address + row * source.pitch;
            let ranges = self.translate(stream, at, shape.width, false).unwrap_or_default();
            ranges.iter().all(|&(_, physical, length)| pages.is_written(physical, length))
        })
    }

    /// Checks that one side of a copy is in the kind of memory that the caller states. Also
    /// determines the kind: device memory, or host memory that is pinned, managed or pageable.
    pub(super) fn check_side(&mut self, side: Side, shape: Shape) -> Outcome<Side> {
        fail_if(side.address == 0, INVALID_VALUE)?;
        let span = span(side.pitch, shape).filter(|span| side.address.checked_add(*span).is_some());
        let span = span.ok_or(INVALID_VALUE)?;
        let known = self.state.space.find(side.address).map(|(_, found)| found.kind);
        let host = !is_device_address(side.address);
        // The device does not see pageable memory.
        if side.is == Is::Device && host && known.is_none() {
            self.find_wild(side.address, span);
            return Err(INVALID_VALUE);
        }
        if known.is_some() || !host {
            for row in 0..shape.height {
                self.check_range(side.address + row * side.pitch, shape.width)?;
                if side.pitch == 0 {
                    break;
                }
            }
        }
        Ok(Side { is: if host { Is::Host } else { Is::Device }, ..side })
    }

    fn is_of_host_pool(&self, side: &Side) -> bool {
        let found = self.state.space.find(side.address).map(|(_, found)| found.kind);
        let Some(Kind::Pool { pool, .. }) = found else { return false };
        self.state.pools.get(pool).is_some_and(|pool| matches!(pool.memory, PoolMemory::Host(_)))
    }

    fn is_pageable(&self, side: Side) -> bool {
        side.is == Is::Host && self.state.space.find(side.address).is_none()
    }
}

/// Returns one side (source or target) of a two-dimensional copy.
fn side(
    kind: CUmemorytype,
    (host, device): (u64, u64),
    (x, y, pitch): (usize, usize, usize),
    width: u64,
) -> Outcome<Side> {
    let (base, is) = match kind {
        CUmemorytype::HOST => (host, Is::Host),
        CUmemorytype::DEVICE => (device, Is::Device),
        CUmemorytype::UNIFIED => (device, Is::Any),
        CUmemorytype::ARRAY => return Err(CUresult::ERROR_NOT_SUPPORTED),
        _ => return Err(INVALID_VALUE),
    };
    // Without a pitch, the rows have no gaps.
    let pitch = if pitch == 0 { width } else { pitch as u64 };
    fail_if(pitch < (x as u64).checked_add(width).ok_or(INVALID_VALUE)?, INVALID_VALUE)?;
    let offset = pitch.checked_mul(y as u64).and_then(|offset| offset.checked_add(x as u64));
    let address = offset.and_then(|offset| base.checked_add(offset)).ok_or(INVALID_VALUE)?;
    Ok(Side { address: if base == 0 { 0 } else { address }, is, pitch })
}

/// Returns the number of bytes from the first byte to the end of the last row.
fn span(pitch: u64, shape: Shape) -> Option<u64> {
    pitch.checked_mul(shape.height - 1)?.checked_add(shape.width)
}

/// Reads the rows of a rectangle in host memory, without the gaps between them.
fn stage(source: Side, shape: Shape) -> Vec<u8> {
    let mut staged = vec![0; (shape.width * shape.height) as usize];
    for (row, out) in staged.chunks_exact_mut(shape.width as usize).enumerate() {
        host::read(source.address + row as u64 * source.pitch, out);
    }
    staged
}
