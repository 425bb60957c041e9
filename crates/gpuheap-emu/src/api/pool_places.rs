//! Finds the memory for a new pool. Manages the default and the current pool of each location, and
//! the access of devices to a pool.

use super::prelude::*;
use crate::state::pool::{Pool, PoolMemory, PoolsAt};

impl Call<'_> {
    /// Returns the device and the kind of memory of a new pool. The error codes are those that a
    /// real driver returned. Pools that several processes share are not modelled.
    pub(crate) fn memory_of_new_pool(
        &mut self,
        asked: &CUmemPoolProps,
    ) -> Outcome<(usize, PoolMemory)> {
        type L = CUmemLocationType;
        const SHAREABLE: c_int = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | 8;
        let pinned = asked.kind == CU_MEM_ALLOCATION_TYPE_PINNED;
        let is_managed = asked.kind == CU_MEM_ALLOCATION_TYPE_MANAGED;
        if asked.handle_types != 0 {
            let one_place = matches!(asked.location.kind, L::DEVICE | L::HOST_NUMA);
            fail_if(!pinned || !one_place || asked.handle_types & !SHAREABLE != 0, INVALID_VALUE)?;
            self.memory_at(asked.location, asked.kind)?;
            return Err(CUresult::ERROR_NOT_SUPPORTED);
        }
        match asked.location.kind {
            L::HOST_NUMA_CURRENT if is_managed => {
                self.host_pools(true)?;
                Ok((0, PoolMemory::Managed(asked.location)))
            }
            kind if !is_managed && !(L::DEVICE.0..=L::HOST_NUMA.0).contains(&kind.0) => {
                Err(INVALID_VALUE)
            }
            _ => self.memory_at(asked.location, asked.kind),
        }
    }

    fn memory_at(&mut self, location: CUmemLocation, kind: c_int) -> Outcome<(usize, PoolMemory)> {
        type L = CUmemLocationType;
        self.initialised()?;
        let managed = match kind {
            _ if !(L::INVALID.0..=L::HOST_NUMA.0).contains(&location.kind.0) => {
                return Err(CUresult::ERROR_NOT_SUPPORTED);
            }
            CU_MEM_ALLOCATION_TYPE_PINNED => false,
            CU_MEM_ALLOCATION_TYPE_MANAGED => true,
            _ => return Err(INVALID_VALUE),
        };
        let mut at = location;
        match location.kind {
            L::DEVICE => {
                self.device(location.id).map_err(|_| INVALID_VALUE)?;
                self.device_with_pools(location.id)?;
                if !managed {
                    return Ok((location.id as usize, PoolMemory::Device));
                }
            }
            // The emulated host has one node.
            L::HOST_NUMA if location.id != 0 => return Err(INVALID_VALUE),
            L::INVALID if !managed => return Err(INVALID_VALUE),
            // A NUMA node's id is 0 already, and the id of the other locations has no meaning.
            _ => at.id = 0,
        }
        self.host_pools(managed)?;
        Ok((0, if managed { PoolMemory::Managed(at) } else { PoolMemory::Host(at) }))
    }

    /// Refuses pools of host or managed memory if the first device does not support them. The first
    /// device decides, because such a pool belongs to no device.
    fn host_pools(&mut self, managed: bool) -> Outcome {
        let profile = &self.device_with_pools(0)?.profile;
        let has = if managed { profile.concurrent_managed_access } else { !profile.wsl2 };
        if has { Ok(()) } else { Err(CUresult::ERROR_NOT_SUPPORTED) }
    }

    /// Returns whether a pool hands out managed memory.
    pub(crate) fn is_pool_managed(&self, pool: usize) -> bool {
        let found = self.state.pools.get(pool);
        found.is_some_and(|pool| matches!(pool.memory, PoolMemory::Managed(_)))
    }

    /// Returns the default and the current pool of host memory or of managed memory.
    fn pools_at(&mut self, memory: PoolMemory) -> &mut PoolsAt {
        let state = &mut *self.state;
        let found = state.pools_at.iter().position(|at| at.memory == memory);
        let index = found.unwrap_or_else(|| {
            let default = state.pools.insert(Pool::new(0, memory, 0, true));
            state.pools_at.push(PoolsAt { memory, default, current: default });
            state.pools_at.len() - 1
        });
        &mut state.pools_at[index]
    }

    pub(crate) fn cuMemGetDefaultMemPool(
        &mut self,
        (pool, location, kind): args::cuMemGetDefaultMemPool,
    ) -> Outcome {
        pool.require()?;
        match self.memory_at(location.get()?, kind)? {
            (device, PoolMemory::Device) => {
                self.cuDeviceGetDefaultMemPool((pool, device as CUdevice))
            }
            (_, memory) => pool.write(CUmemoryPool(self.pools_at(memory).default)),
        }
    }

    pub(crate) fn cuMemGetMemPool(
        &mut self,
        (pool, location, kind): args::cuMemGetMemPool,
    ) -> Outcome {
        pool.require()?;
        match self.memory_at(location.get()?, kind)? {
            (device, PoolMemory::Device) => self.cuDeviceGetMemPool((pool, device as CUdevice)),
            (_, memory) => pool.write(CUmemoryPool(self.pools_at(memory).current)),
        }
    }

    pub(crate) fn cuMemSetMemPool(
        &mut self,
        (location, kind, pool): args::cuMemSetMemPool,
    ) -> Outcome {
        let (device, memory) = self.memory_at(location.get()?, kind)?;
        fail_if(self.pool(pool)?.memory != memory, INVALID_VALUE)?;
        if memory == PoolMemory::Device {
            return self.cuDeviceSetMemPool((device as CUdevice, pool));
        }
        self.pools_at(memory).current = pool.0;
        Ok(())
    }

    pub(crate) fn cuMemPoolSetAccess(
        &mut self,
        (pool, access, count): args::cuMemPoolSetAccess,
    ) -> Outcome {
        type L = CUmemLocationType;
        let found = self.pool(pool)?;
        let (own, memory, mut changed) = (found.device, found.memory, Vec::new());
        let mut host_access = found.host_access;
        fail_if(access.is_null(), INVALID_VALUE)?;
        for index in 0..count {
            let CUmemAccessDesc { location, flags } = access.at(index).get()?;
            let known = [CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE];
            let none = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;
            if matches!(location.kind, L::HOST | L::HOST_NUMA) && known.contains(&flags) {
                // The host always has access to host memory, and never to the memory of a device.
                match memory {
                    PoolMemory::Device => return Err(CUresult::ERROR_NOT_SUPPORTED),
                    PoolMemory::Host(_) if none => return Err(CUresult::ERROR_NOT_SUPPORTED),
                    _ => host_access = flags,
                }
                continue;
            }
            fail_if(
                location.kind == L::DEVICE
                    && !(known.contains(&flags) || flags == CU_MEM_ACCESS_FLAGS_PROT_READ),
                INVALID_VALUE,
            )?;
            fail_if(
                location.kind != L::DEVICE || !known.contains(&flags),
                CUresult::ERROR_NOT_SUPPORTED,
            )?;
            self.device(location.id)?;
            if memory == PoolMemory::Device && location.id as usize == own {
                // The access of the pool's own device cannot be removed.
                if flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
                    continue;
                }
                return Err(CUresult::ERROR_INVALID_DEVICE);
            }
            fail_if(
                memory == PoolMemory::Device && !self.peers_reach(own as CUdevice, location.id)?,
                CUresult::ERROR_PEER_ACCESS_UNSUPPORTED,
            )?;
            changed.push((location.id, flags));
        }
        // A wrong description changes nothing (measured).
        let found = self.pool(pool)?;
        found.host_access = host_access;
        for (device, flags) in changed {
            found.access.retain(|(known, _)| *known != device);
            found.access.push((device, flags));
        }
        Ok(())
    }

    pub(crate) fn cuMemPoolGetAccess(
        &mut self,
        (flags, pool, location): args::cuMemPoolGetAccess,
    ) -> Outcome {
        type L = CUmemLocationType;
        let location = location.get()?;
        let found = self.pool(pool)?;
        let own = found.device;
        match location.kind {
            L::DEVICE => {}
            L::HOST | L::HOST_NUMA => return flags.write(found.host_access),
            _ => return Err(INVALID_VALUE),
        }
        self.device(location.id).map_err(|_| INVALID_VALUE)?;
        let found = self.pool(pool)?;
        let known = found.access.iter().find(|(device, _)| *device == location.id);
        flags.write(match known {
            _ if found.is_of_device() && location.id as usize == own => {
                CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            }
            Some((_, flags)) => *flags,
            None => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        })
    }
}
