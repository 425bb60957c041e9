//! Devices: their number and properties.

use super::prelude::*;
use crate::Profile;
use crate::state::device::Device;

impl Call<'_> {
    pub(crate) fn cuDeviceGet(&mut self, (device, ordinal): args::cuDeviceGet) -> Outcome {
        self.device(ordinal)?;
        device.write(ordinal)
    }

    pub(crate) fn cuDeviceGetCount(&mut self, count: Out<c_int>) -> Outcome {
        self.initialised()?;
        count.write(self.state.devices.len() as c_int)
    }

    pub(crate) fn cuDeviceGetName(
        &mut self,
        (name, length, device): args::cuDeviceGetName,
    ) -> Outcome {
        let text = &self.device(device)?.profile.name;
        write_text(name, text, length)
    }

    pub(crate) fn cuDeviceGetUuid(&mut self, (uuid, device): args::cuDeviceGetUuid) -> Outcome {
        let number = self.device(device)?.number;
        uuid.write(CUuuid { bytes: Profile::uuid(number) })
    }

    pub(crate) fn cuDeviceTotalMem_v2(
        &mut self,
        (bytes, device): args::cuDeviceTotalMem_v2,
    ) -> Outcome {
        let total = self.device(device)?.profile.memory_bytes;
        bytes.write(total as usize)
    }

    pub(crate) fn cuDeviceGetAttribute(
        &mut self,
        (value, attribute, device): args::cuDeviceGetAttribute,
    ) -> Outcome {
        let found = self.device(device)?;
        let known = device_attribute(&found.profile, attribute, found.number);
        value.write(known.ok_or(INVALID_VALUE)?)
    }

    pub(crate) fn cuDeviceComputeCapability(
        &mut self,
        (major, minor, device): args::cuDeviceComputeCapability,
    ) -> Outcome {
        let capability = self.device(device)?.profile.compute_capability;
        major.write(capability.0)?;
        minor.write(capability.1)
    }

    pub(crate) fn cuDeviceGetPCIBusId(
        &mut self,
        (id, length, device): args::cuDeviceGetPCIBusId,
    ) -> Outcome {
        let number = self.device(device)?.number;
        write_text(id, &bus_id(number), length)
    }

    pub(crate) fn cuDeviceGetByPCIBusId(
        &mut self,
        (device, id): args::cuDeviceGetByPCIBusId,
    ) -> Outcome {
        self.initialised()?;
        let wanted = id.text()?.to_ascii_lowercase();
        let known = |ordinal: &CUdevice| {
            let id = bus_id(self.state.devices[*ordinal as usize].number);
            wanted == id || wanted == id["0000:".len()..]
        };
        let found = (0..self.state.devices.len() as CUdevice).find(known);
        device.write(found.ok_or(CUresult::ERROR_INVALID_DEVICE)?)
    }

    pub(crate) fn cuDeviceCanAccessPeer(
        &mut self,
        (can, device, peer): args::cuDeviceCanAccessPeer,
    ) -> Outcome {
        let allowed = self.peers_reach(device, peer)?;
        can.write(c_int::from(allowed))
    }

    pub(crate) fn cuDeviceGetP2PAttribute(
        &mut self,
        (value, attribute, source, target): args::cuDeviceGetP2PAttribute,
    ) -> Outcome {
        // PERFORMANCE_RANK, ACCESS_SUPPORTED, NATIVE_ATOMIC_SUPPORTED, CUDA_ARRAY_ACCESS_SUPPORTED,
        // ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED.
        const PERFORMANCE_RANK: c_int = 1;
        const PARTIAL_ATOMICS: c_int = 5;
        fail_if(source == target, CUresult::ERROR_INVALID_DEVICE)?;
        let reach = self.peers_reach(source, target)?;
        match attribute {
            PERFORMANCE_RANK | PARTIAL_ATOMICS => value.write(0),
            2..PARTIAL_ATOMICS => value.write(c_int::from(reach)),
            _ => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn cuDeviceGetDefaultMemPool(
        &mut self,
        (pool, device): args::cuDeviceGetDefaultMemPool,
    ) -> Outcome {
        let found = self.device_with_pools(device)?.default_pool;
        pool.write(CUmemoryPool(found))
    }

    pub(crate) fn cuDeviceGetMemPool(
        &mut self,
        (pool, device): args::cuDeviceGetMemPool,
    ) -> Outcome {
        self.initialised()?;
        // For a wrong ordinal, this function returns `INVALID_VALUE`, but
        // `cuDeviceGetDefaultMemPool` returns `INVALID_DEVICE` (both measured).
        let found = self.device_with_pools(device).map_err(|code| match code {
            CUresult::ERROR_INVALID_DEVICE => INVALID_VALUE,
            code => code,
        })?;
        pool.write(CUmemoryPool(found.current_pool))
    }

    pub(crate) fn cuDeviceSetMemPool(
        &mut self,
        (device, pool): args::cuDeviceSetMemPool,
    ) -> Outcome {
        self.device_with_pools(device)?;
        let found = self.pool(pool)?;
        fail_if(found.device != device as usize || !found.is_of_device(), INVALID_VALUE)?;
        self.state.devices[device as usize].current_pool = pool.0;
        Ok(())
    }

    pub(crate) fn initialised(&self) -> Outcome {
        fail_if(!self.state.initialised, CUresult::ERROR_NOT_INITIALIZED)
    }

    pub(crate) fn device(&mut self, ordinal: CUdevice) -> Outcome<&mut Device> {
        self.initialised()?;
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.state.devices.get_mut(ordinal))
            .ok_or(CUresult::ERROR_INVALID_DEVICE)
    }

    pub(crate) fn device_with_pools(&mut self, ordinal: CUdevice) -> Outcome<&mut Device> {
        let device = self.device(ordinal)?;
        if device.profile.pools { Ok(device) } else { Err(CUresult::ERROR_NOT_SUPPORTED) }
    }

    /// Returns whether one device can use another device's memory. Under WSL2, no device can.
    pub(crate) fn peers_reach(&mut self, device: CUdevice, peer: CUdevice) -> Outcome<bool> {
        let near = self.device(device)?.profile.wsl2;
        let far = self.device(peer)?.profile.wsl2;
        Ok(device != peer && !near && !far)
    }
}

/// Returns the PCI bus address of the device with this number in the machine.
fn bus_id(number: CUdevice) -> String {
    format!("0000:{:02x}:00.0", number + 1)
}

/// Values of device attributes 1 to 147, measured on an H200 under driver 580. [`device_attribute`]
/// takes some attributes from the profile instead. The remaining attributes are equal in all
/// profiles, because other devices were not measured.
#[rustfmt::skip]
const H200: [c_int; 147] = [
    1024, 1024, 1024, 64, 2147483647, 65535, 65535, 49152, 65536, 32,
    2147483647, 65536, 1980000, 512, 1, 132, 0, 0, 1, 0,
    131072, 131072, 65536, 16384, 16384, 16384, 32768, 32768, 2048, 512,
    1, 1, 0, 6, 0, 3201000, 6016, 62914560, 2048, 3,
    1, 32768, 2048, 1, 32768, 32768, 8192, 8192, 32768, 0,
    32, 32768, 32768, 2046, 32768, 131072, 65536, 16384, 16384, 16384,
    32768, 2048, 32768, 32768, 2048, 32768, 32768, 2046, 268435456, 131072,
    65000, 2097120, 32768, 32768, 9, 0, 32768, 1, 1, 1,
    233472, 65536, 1, 0, 0, 0, 2, 0, 1, 1,
    1, 0, 0, 0, 1, 1, 232448, 0, 1, 0,
    0, 1, 1, 0, 0, 32, 1, 39321600, 134217728, 1,
    1024, 1, 1, 1, 1, 1, 1, 100, 9, 1,
    1, 1, 1, 1, 1, 4, 1, 1, 1, 0,
    -1, 0, 0, 0, 0, 0, 0, 0, 590680286, 415174878,
    1, 1, 0, 1, 1, 0, 0,
];

fn device_attribute(
    profile: &Profile,
    attribute: CUdevice_attribute,
    number: CUdevice,
) -> Option<c_int> {
    type A = CUdevice_attribute;
    let index = usize::try_from(attribute.0).ok()?.checked_sub(1)?;
    let measured = *H200.get(index)?;
    Some(match attribute {
        A::CLOCK_RATE => profile.clock_khz,
        A::MULTIPROCESSOR_COUNT => profile.multiprocessors,
        A::PCI_BUS_ID => number + 1,
        A::MULTI_GPU_BOARD_GROUP_ID => number,
        A::PCI_DEVICE_ID | A::PCI_DOMAIN_ID => 0,
        A::MEMORY_CLOCK_RATE => profile.memory_clock_khz,
        A::GLOBAL_MEMORY_BUS_WIDTH => profile.memory_bus_bits,
        A::L2_CACHE_SIZE => profile.l2_cache_bytes,
        A::MAX_THREADS_PER_MULTIPROCESSOR => match profile.compute_capability {
            (7, 5) => 1024,
            (8, 6..) => 1536,
            _ => measured,
        },
        A::COMPUTE_CAPABILITY_MAJOR => profile.compute_capability.0,
        A::COMPUTE_CAPABILITY_MINOR => profile.compute_capability.1,
        A::CONCURRENT_MANAGED_ACCESS => c_int::from(profile.concurrent_managed_access),
        A::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => c_int::from(profile.vmm),
        A::MEMORY_POOLS_SUPPORTED => c_int::from(profile.pools),
        A::HOST_NUMA_MEMORY_POOLS_SUPPORTED | A::HOST_MEMORY_POOLS_SUPPORTED => {
            c_int::from(profile.pools && !profile.wsl2)
        }
        // The emulator lacks direct access to pageable memory, sharing with other processes, RDMA,
        // and host memory from `cuMemCreate`.
        A::PAGEABLE_MEMORY_ACCESS
        | A::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | A::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        | A::GPU_DIRECT_RDMA_SUPPORTED
        | A::MEMPOOL_SUPPORTED_HANDLE_TYPES
        | A::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => 0,
        _ => measured,
    })
}

/// Writes a string, truncated to `length` bytes including the null.
fn write_text(place: Out<c_char>, text: &str, length: i32) -> Outcome {
    let Ok(length @ 1..) = usize::try_from(length) else {
        return Err(INVALID_VALUE);
    };
    let text = &text.as_bytes()[..text.len().min(length - 1)];
    // C's `char` is unsigned on ARM.
    place.write_all(text.iter().chain(&[0]).map(|byte| c_char::from_ne_bytes([*byte])))
}
