//! Properties and occupancy of kernels that are not run. The figures are for a small kernel with 32
//! registers and no static shared memory.

use super::prelude::*;
use crate::state::module::Function;

/// Architectures for which binaries such as PyTorch's wheels are commonly compiled. Kernel
/// libraries have plans for these architectures only. CUB has no plan for 8.9, so such devices run
/// the code for 8.6.
const ARCHITECTURES: [c_int; 6] = [75, 80, 86, 90, 100, 120];
/// Number of registers of a thread.
const REGISTERS: c_int = 32;
/// Maximum number of threads in a block.
const BLOCK_THREADS: c_int = 1024;
/// Maximum shared memory of a block, bytes, unless the program raises this limit.
const SHARED_BYTES: c_int = 48 << 10;
/// Maximum number of blocks on a multiprocessor.
const BLOCKS: c_int = 32;
/// Shared memory of a multiprocessor on an H200, in bytes.
const SHARED_BYTES_OF_MULTIPROCESSOR: usize = 228 << 10;
/// Shared memory that the device reserves in each block, in bytes.
const SHARED_BYTES_KEPT: usize = 1 << 10;
/// Size, in blocks, of the largest cluster that every device with cluster support can launch.
const CLUSTER: c_int = 8;
/// Size of a `CUtensorMap`, in bytes.
const TENSOR_MAP: usize = 128;

impl Call<'_> {
    pub(crate) fn cuFuncGetAttribute(
        &mut self,
        (value, attribute, function): args::cuFuncGetAttribute,
    ) -> Outcome {
        type A = CUfunction_attribute;
        self.kernels_are_no_ops()?;
        let set = self.function(function.0)?.set.get(&attribute.0).copied();
        let binary = self.architecture();
        value.write(match (attribute, set) {
            (_, Some(set)) => set,
            (A::MAX_THREADS_PER_BLOCK, _) => BLOCK_THREADS,
            (A::NUM_REGS, _) => REGISTERS,
            (A::PTX_VERSION | A::BINARY_VERSION, _) => binary,
            (A::MAX_DYNAMIC_SHARED_SIZE_BYTES, _) => SHARED_BYTES,
            (A::PREFERRED_SHARED_MEMORY_CARVEOUT, _) => -1,
            (CUfunction_attribute(0..=15), _) => 0,
            _ => return Err(INVALID_VALUE),
        })
    }

    pub(crate) fn cuFuncSetAttribute(
        &mut self,
        (function, attribute, value): args::cuFuncSetAttribute,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        // Attributes below 8 are fixed properties of the kernel.
        fail_if(!(8..=15).contains(&attribute.0), INVALID_VALUE)?;
        self.function(function.0)?.set.insert(attribute.0, value);
        Ok(())
    }

    pub(crate) fn cuFuncSetCacheConfig(
        &mut self,
        (function, _preference): args::cuFuncSetCacheConfig,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0).map(drop)
    }

    pub(crate) fn cuKernelGetAttribute(
        &mut self,
        (value, attribute, kernel, device): args::cuKernelGetAttribute,
    ) -> Outcome {
        self.device(device)?;
        self.cuFuncGetAttribute((value, attribute, CUfunction(kernel.0)))
    }

    pub(crate) fn cuKernelSetAttribute(
        &mut self,
        (attribute, value, kernel, device): args::cuKernelSetAttribute,
    ) -> Outcome {
        self.device(device)?;
        self.cuFuncSetAttribute((CUfunction(kernel.0), attribute, value))
    }

    pub(crate) fn cuKernelSetCacheConfig(
        &mut self,
        (kernel, preference, device): args::cuKernelSetCacheConfig,
    ) -> Outcome {
        self.device(device)?;
        self.cuFuncSetCacheConfig((CUfunction(kernel.0), preference))
    }

    pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &mut self,
        (count, function, block_threads, shared_bytes): args::cuOccupancyMaxActiveBlocksPerMultiprocessor,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0)?;
        let blocks = self.active_blocks(block_threads, shared_bytes)?;
        count.write(blocks)
    }

    pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        &mut self,
        (count, function, block_threads, shared_bytes, _flags): args::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    ) -> Outcome {
        self.cuOccupancyMaxActiveBlocksPerMultiprocessor((
            count,
            function,
            block_threads,
            shared_bytes,
        ))
    }

    pub(crate) fn cuOccupancyMaxPotentialBlockSize(
        &mut self,
        (blocks, block_threads, function, _shared_bytes_of, shared_bytes, limit): args::cuOccupancyMaxPotentialBlockSize,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0)?;
        let threads = if limit > 0 { limit.min(BLOCK_THREADS) } else { BLOCK_THREADS };
        let active = self.active_blocks(threads, shared_bytes)?;
        blocks.write(active.saturating_mul(self.multiprocessors()?))?;
        block_threads.write(threads)
    }

    pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
        &mut self,
        (bytes, function, blocks, _block_threads): args::cuOccupancyAvailableDynamicSMemPerBlock,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0)?;
        let Ok(blocks @ 1..) = usize::try_from(blocks) else {
            return Err(INVALID_VALUE);
        };
        let each = SHARED_BYTES_OF_MULTIPROCESSOR / blocks;
        bytes.write(each.saturating_sub(SHARED_BYTES_KEPT))
    }

    pub(crate) fn cuOccupancyMaxPotentialClusterSize(
        &mut self,
        (blocks, function, launch): args::cuOccupancyMaxPotentialClusterSize,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0)?;
        launch.get()?;
        blocks.write(CLUSTER)
    }

    pub(crate) fn cuOccupancyMaxActiveClusters(
        &mut self,
        (clusters, function, launch): args::cuOccupancyMaxActiveClusters,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        self.function(function.0)?;
        launch.get()?;
        let most = self.multiprocessors()? / CLUSTER;
        clusters.write(most.max(1))
    }

    /// Writes a tensor description of zeros, because no kernel reads it.
    pub(crate) fn cuTensorMapEncodeTiled(
        &mut self,
        (
            map,
            _data_type,
            _rank,
            _address,
            _sizes,
            _strides,
            _box_sizes,
            _element_strides,
            _interleave,
            _swizzle,
            _promotion,
            _fill,
        ): args::cuTensorMapEncodeTiled,
    ) -> Outcome {
        self.kernels_are_no_ops()?;
        // SAFETY: the caller passes a pointer to a `CUtensorMap`, which has this size.
        unsafe { map.cast::<[u8; TENSOR_MAP]>() }.write([0; TENSOR_MAP])
    }

    /// Returns the architecture for which a kernel was compiled, as 10 × major + minor.
    fn architecture(&self) -> c_int {
        let current = self.current().ok().map(|context| self.device_of(context));
        let device = self.state.devices.get(current.unwrap_or(0));
        let (major, minor) = device.map_or((0, 0), |device| device.profile.compute_capability);
        let own = major.saturating_mul(10).saturating_add(minor);
        ARCHITECTURES.into_iter().rev().find(|known| *known <= own).unwrap_or(own)
    }

    fn function(&mut self, handle: usize) -> Outcome<&mut Function> {
        self.state.functions.get_mut(handle).ok_or(CUresult::ERROR_INVALID_HANDLE)
    }

    /// Returns the number of blocks that a multiprocessor runs at once.
    fn active_blocks(&mut self, block_threads: c_int, shared_bytes: usize) -> Outcome<c_int> {
        fail_if(block_threads < 1, INVALID_VALUE)?;
        if block_threads > BLOCK_THREADS {
            return Ok(0);
        }
        let by_threads =
            2 * BLOCK_THREADS / (block_threads.cast_unsigned().next_multiple_of(32).cast_signed());
        let each = shared_bytes.saturating_add(SHARED_BYTES_KEPT);
        let by_shared = (SHARED_BYTES_OF_MULTIPROCESSOR / each) as c_int;
        Ok(by_threads.min(by_shared).min(BLOCKS))
    }

    fn multiprocessors(&mut self) -> Outcome<c_int> {
        let context = self.current()?;
        let device = self.device_of(context);
        Ok(self.state.devices[device].profile.multiprocessors)
    }
}
