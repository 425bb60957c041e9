//! Manages virtual memory of the driver: addresses, physical memory, and mappings.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpuheap_driver::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM, CUdevice,
    CUdevice_attribute, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocation, CUresult, Driver,
};
use gpuheap_pool::{Chunk, GRANULE, Gone, Pages, SourceError, SourceResult};

use super::{check, name_pool, unname_pool};
use crate::device::{Context, NoVirtualMemory, VirtualMemory};
use crate::error::driver_error;
use crate::kind::MemoryKind;
use crate::total_limit::Share;

/// Virtual memory of one heap on a device. Dropping this gives back all remaining memory, so no
/// work may use that memory any longer. After [`leave`](Vmm::leave), the drop gives back nothing.
///
/// No call of this type is ordered on a stream.
pub(super) struct Vmm {
    context: Arc<Context>,
    device: VirtualMemory,
    /// Physical memory, indexed by the chunk's number.
    chunks: Vec<Physical>,
    unused: Vec<u32>,
    /// Sizes of the reserved ranges in bytes, keyed by first address.
    reserved: BTreeMap<u64, u64>,
    /// Sizes of the mappings in bytes, keyed by first address.
    mapped: BTreeMap<u64, u64>,
    /// Failed mappings that are still to be undone.
    strays: Vec<Stray>,
    /// Bytes of physical memory that exist.
    created: u64,
    /// Part of a total limit that this physical memory takes up, in bytes.
    pub(super) share: Share,
    /// Bytes that the source has reserved by plain driver allocations, in addition to `created`.
    pub(super) beside: u64,
    /// High-water mark of `beside` plus `created`. Methods of this type update it.
    pub(super) reserved_peak: u64,
    pub(super) calls: u64,
}

/// A handle of physical memory. Both fields are 0 if the chunk's number is unused. The driver
/// refuses the handle 0.
#[derive(Clone, Copy, Default)]
struct Physical {
    handle: CUmemGenericAllocationHandle,
    bytes: u64,
}

/// A range whose mapping failed halfway.
struct Stray {
    address: u64,
    bytes: u64,
    chunks: Vec<Chunk>,
}

/// Probes a device's virtual memory. Some setups of WSL2 report support and refuse the calls, so
/// each call is made once, for one granule (about 70 µs on an H200).
fn probe(context: &Arc<Context>) -> Result<VirtualMemory, NoVirtualMemory> {
    if !context.info().virtual_memory {
        return Err(NoVirtualMemory::Missing);
    }
    let tried = || -> SourceResult<VirtualMemory> {
        let found = query_properties(context)?;
        let mut vmm = Vmm::new(context.clone(), found);
        let bytes = vmm.granule();
        let address = vmm.reserve(bytes)?;
        let chunk = vmm.create(bytes)?;
        vmm.map(address, &[chunk])?;
        vmm.unmap(address, bytes)?;
        vmm.destroy(chunk)?;
        vmm.unreserve(address, bytes)?;
        Ok(found)
    };
    let found = tried().map_err(|error| match error {
        SourceError::Driver(error) => NoVirtualMemory::Refused(driver_error(error)),
        SourceError::Gone(gone) => NoVirtualMemory::Gone(gone),
        SourceError::OutOfMemory
        | SourceError::Limited
        | SourceError::StreamUnusable
        | SourceError::Capturing
        | SourceError::HostBorrowed => NoVirtualMemory::Full,
    })?;
    match found.granule {
        coarse if coarse > GRANULE => Err(NoVirtualMemory::Coarse(coarse)),
        _ => Ok(found),
    }
}

/// Queries the granularity of the device's virtual memory, and whether the memory supports RDMA.
fn query_properties(context: &Context) -> SourceResult<VirtualMemory> {
    let (driver, device) = (context.driver(), context.ordinal());
    let (mut rdma, mut granule) = (0, 0);
    let properties = CUmemAllocationProp::device(device);
    let attribute = CUdevice_attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    // Rounding to the minimum loses the least. On an H200 it equals the recommended granularity.
    let option = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let _current = context.enter_aside()?;
    // SAFETY: all pointers are valid for their calls.
    unsafe {
        let code = driver.cuDeviceGetAttribute(&mut rdma, attribute, device);
        check("cuDeviceGetAttribute", code)?;
        let code = driver.cuMemGetAllocationGranularity(&mut granule, &properties, option);
        check("cuMemGetAllocationGranularity", code)?;
    }
    let granule = (granule as u64).next_power_of_two();
    Ok(VirtualMemory { granule, rdma: rdma != 0 })
}

impl Context {
    /// Returns the properties of the device's virtual memory, or the reason why it does not work.
    /// The first call probes it.
    pub(crate) fn virtual_memory(self: &Arc<Self>) -> Result<VirtualMemory, NoVirtualMemory> {
        self.virtual_memory_by(|| probe(self))
    }
}

impl Vmm {
    pub(super) fn new(context: Arc<Context>, device: VirtualMemory) -> Vmm {
        Vmm {
            context,
            device,
            chunks: Vec::new(),
            unused: Vec::new(),
            reserved: BTreeMap::new(),
            mapped: BTreeMap::new(),
            strays: Vec::new(),
            created: 0,
            share: Share::default(),
            beside: 0,
            reserved_peak: 0,
            calls: 0,
        }
    }

    /// Returns the bytes of physical memory created.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    /// Returns `true` if an address is in a reserved range.
    pub(super) fn holds(&self, address: u64) -> bool {
        let before = self.reserved.range(..=address).next_back();
        before.is_some_and(|(start, bytes)| address - start < *bytes)
    }

    fn properties(&self) -> CUmemAllocationProp {
        let mut properties = CUmemAllocationProp::device(self.context.ordinal());
        properties.gpu_direct_rdma_capable = u8::from(self.device.rdma);
        properties
    }

    fn call(
        &mut self,
        function: &'static str,
        call: impl FnOnce(&dyn Driver) -> CUresult,
    ) -> SourceResult {
        self.calls += 1;
        let _current = self.context.enter_aside()?;
        check(function, call(self.context.driver()))
    }

    fn physical(&self, chunk: Chunk) -> Physical {
        self.chunks.get(chunk.0 as usize).copied().unwrap_or_default()
    }

    /// Gives the device, and the other devices that read its memory, access to a mapped range.
    /// Makes one driver call. Its time depends on the number of chunks, but not on their sizes.
    fn allow(&mut self, address: u64, bytes: u64) -> SourceResult {
        let mut devices = self.context.readers();
        devices.push(self.context.ordinal());
        self.allow_to(&devices, address, bytes)
    }

    fn allow_to(&mut self, devices: &[CUdevice], address: u64, bytes: u64) -> SourceResult {
        let flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = devices.iter().map(|device| CUmemLocation::device(*device));
        let access: Vec<_> = access.map(|location| CUmemAccessDesc { location, flags }).collect();
        self.call("cuMemSetAccess", |driver| {
            // SAFETY: the range is mapped, and the count matches the descriptions.
            unsafe { driver.cuMemSetAccess(address, bytes as usize, access.as_ptr(), access.len()) }
        })
    }

    /// Gives another device access to the mapped ranges.
    pub(super) fn open_to(&mut self, reader: CUdevice) -> SourceResult {
        let mapped: Vec<_> = self.mapped.iter().map(|(start, bytes)| (*start, *bytes)).collect();
        mapped.into_iter().try_for_each(|(start, bytes)| self.allow_to(&[reader], start, bytes))
    }

    fn unmap_range(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.call("cuMemUnmap", |driver| {
            // SAFETY: this heap mapped the range, and the policy unmaps it only after its last use
            // completed.
            unsafe { driver.cuMemUnmap(address, bytes as usize) }
        })
    }

    /// Undoes failed mappings for which `is_in_the_way` is true. Until they are undone, neither
    /// their addresses nor their chunks can be given back.
    fn clear_strays(&mut self, is_in_the_way: impl Fn(&Stray) -> bool) -> SourceResult {
        while let Some(at) = self.strays.iter().position(&is_in_the_way) {
            let Stray { address, bytes, .. } = self.strays[at];
            self.unmap_range(address, bytes)?;
            self.strays.swap_remove(at);
        }
        Ok(())
    }

    fn clear_strays_at(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.clear_strays(|stray| {
            stray.address < address.saturating_add(bytes) && address < stray.address + stray.bytes
        })
    }
}

impl Pages for Vmm {
    fn granule(&self) -> u64 {
        self.device.granule
    }

    fn reserve(&mut self, bytes: u64) -> SourceResult<u64> {
        let size = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let mut address = 0;
        self.call("cuMemAddressReserve", |driver| {
            // SAFETY: the driver writes the first address to `address`; zeros request its defaults.
            unsafe { driver.cuMemAddressReserve(&mut address, size, 0, 0, 0) }
        })?;
        self.reserved.insert(address, bytes);
        name_pool(&self.context, MemoryKind::Device, address, bytes);
        Ok(address)
    }

    fn unreserve(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.clear_strays_at(address, bytes)?;
        // Removes the range's name for profilers. After the free, another heap may name the
        // addresses.
        unname_pool(&self.context, address);
        let freed = self.call("cuMemAddressFree", |driver| {
            // SAFETY: the driver frees these addresses only if this heap reserved them; otherwise
            // it refuses the call.
            unsafe { driver.cuMemAddressFree(address, bytes as usize) }
        });
        freed.inspect_err(|_| name_pool(&self.context, MemoryKind::Device, address, bytes))?;
        self.reserved.remove(&address);
        Ok(())
    }

    fn create(&mut self, bytes: u64) -> SourceResult<Chunk> {
        let size = usize::try_from(bytes).map_err(|_| SourceError::OutOfMemory)?;
        let (properties, mut handle) = (self.properties(), 0);
        self.share.claim(bytes)?;
        let created = self.call("cuMemCreate", |driver| {
            // SAFETY: `handle` receives the allocation, and `properties` is only read; both outlive
            // the closure.
            unsafe { driver.cuMemCreate(&mut handle, size, &properties, 0) }
        });
        self.created += if created.is_ok() { bytes } else { 0 };
        self.share.settle(self.created);
        created?;
        self.reserved_peak = self.reserved_peak.max(self.beside + self.created);
        let physical = Physical { handle, bytes };
        match self.unused.pop() {
            Some(number) => {
                self.chunks[number as usize] = physical;
                Ok(Chunk(number))
            }
            None => {
                self.chunks.push(physical);
                Ok(Chunk(self.chunks.len() as u32 - 1))
            }
        }
    }

    fn destroy(&mut self, chunk: Chunk) -> SourceResult {
        self.clear_strays(|stray| stray.chunks.contains(&chunk))?;
        let Physical { handle, bytes } = self.physical(chunk);
        self.call("cuMemRelease", |driver| {
            // SAFETY: the handle is this heap's and is not used again; the driver refuses handle 0.
            unsafe { driver.cuMemRelease(handle) }
        })?;
        self.created -= bytes;
        self.share.settle(self.created);
        self.chunks[chunk.0 as usize] = Physical::default();
        self.unused.push(chunk.0);
        Ok(())
    }

    fn map(&mut self, address: u64, chunks: &[Chunk]) -> SourceResult {
        let bytes = chunks.iter().map(|chunk| self.physical(*chunk).bytes).sum();
        self.clear_strays_at(address, bytes)?;
        let mut end = address;
        let mut mapped = Ok(());
        let mut done = 0;
        for chunk in chunks {
            let Physical { handle, bytes } = self.physical(*chunk);
            mapped = self.call("cuMemMap", |driver| {
                // SAFETY: addresses and handle belong to this heap; the driver refuses a range that
                // is mapped already.
                unsafe { driver.cuMemMap(end, bytes as usize, 0, handle, 0) }
            });
            if mapped.is_err() {
                break;
            }
            end += bytes;
            done += 1;
        }
        if end == address {
            return mapped;
        }
        mapped = mapped.and_then(|()| self.allow(address, end - address));
        if mapped.is_err() {
            let (bytes, chunks) = (end - address, chunks[..done].to_vec());
            self.strays.push(Stray { address, bytes, chunks });
            let _ = self.clear_strays_at(address, bytes);
            return mapped;
        }
        let mut start = address;
        for chunk in chunks {
            let bytes = self.physical(*chunk).bytes;
            self.mapped.insert(start, bytes);
            start += bytes;
        }
        Ok(())
    }

    fn unmap(&mut self, address: u64, bytes: u64) -> SourceResult {
        self.unmap_range(address, bytes)?;
        self.mapped.remove(&address);
        Ok(())
    }
}

impl Vmm {
    /// Abandons all mappings and memory as they are, because work may still use them.
    pub(super) fn leave(&mut self) {
        self.strays.clear();
        self.mapped.clear();
        self.chunks.clear();
        self.reserved.clear();
    }

    /// Gives back all mappings, memory and addresses when the heap or the context ends. No work may
    /// use them.
    pub(super) fn give_all_back(&mut self) {
        if self.context.check_alive() == Err(Gone::Forked) {
            return;
        }
        // Enters the context in a mode in which the calls below break no capture. If the context
        // has ended, the calls work without it.
        let _aside = self.context.enter_aside();
        let mapped = std::mem::take(&mut self.mapped).into_iter();
        let strays = std::mem::take(&mut self.strays).into_iter();
        let strays = strays.map(|Stray { address, bytes, .. }| (address, bytes));
        let mapped: Vec<_> = mapped.chain(strays).collect();
        // Mappings, chunks and addresses belong to the process and not to a context: no context has
        // to be current, and a reset keeps them. If a call fails, its mapping, chunk or range stays
        // until the process ends.
        let driver = self.context.driver();
        // SAFETY: these maps hold only memory of this heap, and the caller waited for its last use.
        unsafe {
            for (address, bytes) in mapped {
                let _: CUresult = driver.cuMemUnmap(address, bytes as usize);
            }
            for physical in self.chunks.drain(..).filter(|physical| physical.bytes != 0) {
                let _: CUresult = driver.cuMemRelease(physical.handle);
            }
            for (address, bytes) in std::mem::take(&mut self.reserved) {
                unname_pool(&self.context, address);
                let _: CUresult = driver.cuMemAddressFree(address, bytes as usize);
            }
        }
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.give_all_back();
    }
}

#[cfg(test)]
#[cfg(feature = "emulator")]
mod tests {
    use gpuheap_emu::{Fault, FaultPlan, Options, Profile};
    use gpuheap_pool::{MemorySource, Order, PoolKind, Stitched, StreamHandle};

    use super::*;
    use crate::source::PlainSource;
    use crate::tests::failing::{fail_each_call, with_failing_call};
    use crate::{Device, Error, Heap};

    const MIB: u64 = 1 << 20;

    fn device() -> Device {
        Device::emulated_with(Options::with_device(Profile::with_memory(64 * MIB))).unwrap()
    }

    fn source(device: &Device) -> PlainSource {
        PlainSource::new(device.context().clone(), MemoryKind::Device)
    }

    fn used(device: &Device) -> u64 {
        device.emulator().unwrap().usage(0).vmm
    }

    /// Maps three chunks twice and gives back all memory and addresses.
    fn round(pages: &mut dyn Pages) -> SourceResult {
        let chunks = [pages.create(4 * MIB)?, pages.create(2 * MIB)?, pages.create(8 * MIB)?];
        let address = pages.reserve(64 * MIB)?;
        pages.map(address, &chunks)?;
        pages.map(address + 32 * MIB, &[chunks[2], chunks[0]])?;
        pages.unmap(address, 4 * MIB)?;
        pages.unmap(address + 4 * MIB, 2 * MIB)?;
        pages.unmap(address + 6 * MIB, 8 * MIB)?;
        pages.destroy(chunks[1])?;
        pages.unmap(address + 32 * MIB, 8 * MIB)?;
        pages.unmap(address + 40 * MIB, 4 * MIB)?;
        pages.destroy(chunks[0])?;
        pages.destroy(chunks[2])?;
        pages.unreserve(address, 64 * MIB)
    }

    #[test]
    fn created_chunks_count_as_reserved() {
        let device = device();
        let mut source = source(&device);
        let stream = Order::default().stream(1, StreamHandle(0), || None, &mut source);
        let plain = source.take(3 * MIB, stream).unwrap();
        assert_eq!(source.reserved(), Ok(4 * MIB));
        round(source.pages().unwrap()).unwrap();
        assert_eq!(source.reserved(), Ok(4 * MIB));
        assert_eq!(source.reserved_peak(), Ok(18 * MIB));
        let pages = source.pages().unwrap();
        assert_eq!(pages.granule(), 2 * MIB);
        let (chunk, address) = (pages.create(6 * MIB).unwrap(), pages.reserve(16 * MIB).unwrap());
        pages.map(address + 2 * MIB, &[chunk]).unwrap();
        let segment = gpuheap_pool::Segment { address: address + 2 * MIB, bytes: 6 * MIB };
        assert_eq!(source.regained(&[segment, plain]), Ok(10 * MIB));
        assert_eq!(used(&device), 6 * MIB);
        source.give_back(plain).unwrap();
        assert_eq!(source.reserved(), Ok(6 * MIB));
        drop(source);
        assert_eq!(used(&device), 0, "the source returns the rest at its drop");
    }

    #[test]
    fn partial_mapping_is_undone() {
        let device = device();
        let emulator = device.emulator().unwrap();
        let mut source = source(&device);
        let pages = source.pages().unwrap();
        let chunks = [pages.create(4 * MIB).unwrap(), pages.create(2 * MIB).unwrap()];
        let address = pages.reserve(8 * MIB).unwrap();
        let failing = CUresult::ERROR_UNKNOWN;
        for (symbol, nth) in [("cuMemMap", 1), ("cuMemMap", 2), ("cuMemSetAccess", 1)] {
            emulator.set_faults(FaultPlan::new([Fault::nth(symbol, nth, failing)]));
            assert!(pages.map(address, &chunks).is_err(), "{symbol} {nth}");
            // Makes call `nth` of `symbol` fail again. This time, the first attempt to undo the
            // mapping fails too.
            emulator.set_faults(FaultPlan::new([
                Fault::nth(symbol, nth, failing),
                Fault::nth("cuMemUnmap", 1, failing),
            ]));
            assert!(pages.map(address, &chunks).is_err(), "{symbol} {nth}");
            emulator.set_faults(FaultPlan::default());
        }
        pages.map(address, &chunks).unwrap();
        pages.unmap(address, 4 * MIB).unwrap();
        pages.unmap(address + 4 * MIB, 2 * MIB).unwrap();
        for chunk in chunks {
            pages.destroy(chunk).unwrap();
        }
        assert_eq!(used(&device), 0);
    }

    #[test]
    fn stray_mapping_blocks_only_its_range() {
        let device = device();
        let emulator = device.emulator().unwrap();
        let mut source = source(&device);
        let pages = source.pages().unwrap();
        let [one, two] = [4 * MIB, 2 * MIB].map(|bytes| pages.create(bytes).unwrap());
        let [here, there] = [8 * MIB, 16 * MIB].map(|bytes| pages.reserve(bytes).unwrap());
        let failing = CUresult::ERROR_UNKNOWN;
        let access = Fault::nth("cuMemSetAccess", 1, failing);
        let unmap = |nth| Fault::nth("cuMemUnmap", nth, failing);
        emulator.set_faults(FaultPlan::new([access].into_iter().chain((1..=5).map(unmap))));
        assert!(pages.map(here + 2 * MIB, &[one]).is_err());
        let calls = emulator.calls_of("cuMemUnmap");
        pages.map(here, &[two]).unwrap();
        pages.map(here + 6 * MIB, &[two]).unwrap();
        let three = pages.create(2 * MIB).unwrap();
        pages.map(there, &[three]).unwrap();
        assert_eq!(emulator.calls_of("cuMemUnmap"), calls, "it is none of theirs");
        // Access to chunk `one` at `here + 2 MiB` failed, and the chunk could not be unmapped. So
        // the chunk cannot be given back, and its addresses cannot be given back or mapped.
        assert!(pages.destroy(one).is_err());
        assert!(pages.unreserve(here, 8 * MIB).is_err());
        assert!(pages.map(here + 4 * MIB, &[three]).is_err());
        pages.map(there + 2 * MIB, &[one]).unwrap();
        emulator.set_faults(FaultPlan::default());
        for (address, bytes) in [(here, 2), (here + 6 * MIB, 2), (there, 2), (there + 2 * MIB, 4)] {
            pages.unmap(address, bytes * MIB).unwrap();
        }
        for chunk in [one, two, three] {
            pages.destroy(chunk).unwrap();
        }
        pages.unreserve(here, 8 * MIB).unwrap();
        pages.unreserve(there, 16 * MIB).unwrap();
        assert_eq!(used(&device), 0);
    }

    #[test]
    fn failed_calls_lose_no_memory() {
        let device = device();
        let emulator = device.emulator().unwrap();
        device.context().virtual_memory().unwrap();
        let (failed, _) = fail_each_call(|nth| {
            let mut source = source(&device);
            let (done, got_there) =
                with_failing_call(emulator, nth, CUresult::ERROR_UNKNOWN, || {
                    round(source.pages().unwrap())
                });
            assert!(got_there || done.is_ok(), "call {nth}");
            assert_eq!(source.reserved().unwrap(), used(&device), "call {nth}");
            drop(source);
            assert_eq!(used(&device), 0, "call {nth}");
            (done.is_err(), got_there)
        });
        assert!(failed > 20, "{failed}");
        assert_eq!(emulator.findings().unwrap(), []);
    }

    #[test]
    fn unknown_chunk_is_refused() {
        let device = device();
        let mut source = source(&device);
        let pages = source.pages().unwrap();
        let address = pages.reserve(4 * MIB).unwrap();
        assert!(pages.map(address, &[Chunk(7)]).is_err());
        assert!(pages.destroy(Chunk(7)).is_err());
        let chunk = pages.create(2 * MIB).unwrap();
        pages.destroy(chunk).unwrap();
        assert!(pages.destroy(chunk).is_err());
        assert!(pages.unreserve(address, 2 * MIB).is_err());
    }

    #[test]
    fn failed_probe_is_not_repeated() -> Result<(), Error> {
        let calls = [
            "cuMemGetAllocationGranularity",
            "cuMemAddressReserve",
            "cuMemCreate",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemRelease",
            "cuMemAddressFree",
        ];
        for symbol in calls {
            let device = device();
            let emulator = device.emulator().unwrap();
            let refused = CUresult::ERROR_NOT_SUPPORTED;
            emulator.set_faults(FaultPlan::new([Fault::nth(symbol, 1, refused)]));
            let why = device.context().virtual_memory().unwrap_err();
            let text = why.to_string();
            assert!(text.starts_with("the device claims virtual memory management"), "{text}");
            assert!(text.contains(symbol), "{text}");
            let calls = emulator.calls();
            assert_eq!(device.context().virtual_memory(), Err(why), "{symbol}");
            assert_eq!(emulator.calls(), calls);
            assert!(source(&device).pages().is_none());
            assert_eq!(used(&device), 0, "{symbol}");
        }
        let device = Device::emulated(Profile::named("wsl2-rtx4060").unwrap())?;
        assert_eq!(device.context().virtual_memory(), Err(NoVirtualMemory::Missing));
        assert_eq!(device.emulator().unwrap().calls_of("cuMemCreate"), 0);
        Ok(())
    }

    #[test]
    fn peer_reaches_old_and_new_mappings() -> Result<(), Error> {
        let profile = Profile::with_memory(64 * MIB);
        let devices = vec![profile.clone(), profile];
        let devices = Device::emulated_devices(Options { devices, ..Options::default() })?;
        let [reader, owner] = &devices[..] else { panic!("two devices") };
        let builder = Heap::builder(owner).without_environment();
        let source = Box::new(source(owner));
        let heap = builder.build_over(PoolKind::Split, (Box::new(Stitched::in_segments()), source));
        let may = |address| {
            let (mut flags, location) = (0, CUmemLocation::device(reader.ordinal()));
            let driver = owner.context().driver();
            // SAFETY: `flags` and `location` are locals; the driver refuses an unmapped address.
            let calls = unsafe { driver.cuMemGetAccess(&mut flags, &location, address) };
            check("cuMemGetAccess", calls).unwrap();
            flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE as u64
        };
        let map = || {
            let mut state = heap.store(MemoryKind::Device).lock();
            let pages = state.source.pages().unwrap();
            let (address, chunk) =
                (pages.reserve(2 * MIB).unwrap(), pages.create(2 * MIB).unwrap());
            pages.map(address, &[chunk]).unwrap();
            address
        };
        let before = map();
        assert!(!may(before));
        let emulator = owner.emulator().unwrap();
        let failing = Fault::nth("cuMemSetAccess", 1, CUresult::ERROR_UNKNOWN);
        emulator.set_faults(FaultPlan::new([failing]));
        assert!(reader.can_reach(owner).is_err());
        assert!(reader.can_reach(owner)?);
        assert!(may(before) && may(map()));
        drop(heap);
        assert_eq!(emulator.usage(1).vmm, 0);
        Ok(())
    }

    #[test]
    fn probe_of_full_device_is_repeated() {
        let device = device();
        let emulator = device.emulator().unwrap();
        emulator.set_faults(FaultPlan::default().out_of_memory_at(0));
        assert_eq!(device.context().virtual_memory(), Err(NoVirtualMemory::Full));
        emulator.set_faults(FaultPlan::default());
        device.context().virtual_memory().unwrap();
    }
}
