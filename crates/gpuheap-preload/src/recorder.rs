//! Records this process. Tracks live memory, and writes the capture's records.

use std::ffi::c_char;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::mem;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_capture::{
    Address, CopyMemory, MemoryKind, ProcessCapture, Record, Time, loaded_modules, lock_at_exit,
    with_process_id,
};
use gpuheap_catch::messages;
use gpuheap_driver::abi::Arg as _;
use gpuheap_driver::{CUcontext, CUresult};
use rustc_hash::FxHashMap;

use crate::copy_sums::{Copies, Copy};
use crate::limit::{self, Charge};
use crate::mappings::{Mappings, Reference};
use crate::open_ranges::OpenRanges;
use crate::publication::DeviceBytes;
use crate::stacks::CallStack;
use crate::threads::{Guard, ThreadEnds, Threads, without_panic};
use crate::{closes, forks, publication, real, settings};

/// Growth of a device's live bytes after which the device's free memory is read again. An eighth of
/// the live bytes is added to this growth. Reading takes 20 to 100 µs on a GPU.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Memory that the program holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) kind: MemoryKind,
    pub(crate) device: u32,
    pub(crate) context: CUcontext,
    pub(crate) stream: u64,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) charge: Charge,
}

impl Block {
    fn key(&self) -> (u32, u64) {
        (self.kind.space(), self.address)
    }
}

/// Recording of a process. A forked child makes another recorder.
pub(crate) struct Recorder {
    forks: u32,
    /// Id of the process that made the recorder. A `vfork` child shares the parent's memory and so
    /// its recorder.
    pid: u32,
    /// Time of the monotonic clock at the start, in nanoseconds.
    began_ns: u64,
    /// Devices that are recorded, as bits.
    devices: AtomicU64,
    /// Devices whose free memory was read before the process allocated there, as bits.
    read_before: AtomicU64,
    /// `true` once the program copied memory after the end of the recording. Later copies are not
    /// counted, so they take no lock.
    without_copies: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Capture; `None` before the first record, and if nothing is recorded.
    capture: Option<ProcessCapture>,
    /// `true` once the recording ended. Live memory is still counted, for the limit.
    is_ended: bool,
    live: FxHashMap<(u32, u64), Block>,
    /// Bytes of each device, and a threshold. Once the live bytes reach the threshold, the recorder
    /// reads the device's free memory again.
    devices: FxHashMap<u32, (DeviceBytes, u64)>,
    /// Key of the last stack, set by [`State::set_key`].
    key: Vec<u64>,
    /// Value of [`closes::count`] when the loaded files were last read. If it has changed, other
    /// code may have the addresses of recorded stacks.
    closes: u64,
    mappings: Mappings,
    copies: Copies,
    threads: Threads,
    ranges: OpenRanges,
}

static CURRENT: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());

pub(crate) fn existing() -> Option<&'static Recorder> {
    // SAFETY: the pointer is null or a leaked recorder.
    let recorder = unsafe { CURRENT.load(Ordering::Acquire).as_ref() };
    recorder.filter(|recorder| recorder.is_current())
}

/// Returns the recorder of this process, and makes it at the first call. `None` if the settings
/// record nothing and set no limit.
pub(crate) fn current() -> Option<&'static Recorder> {
    existing().or_else(create)
}

#[cold]
fn create() -> Option<&'static Recorder> {
    if !settings::get().is_on() {
        return None;
    }
    let made = Recorder {
        forks: forks::watch(),
        pid: std::process::id(),
        began_ns: clock_ns(),
        devices: AtomicU64::new(0),
        read_before: AtomicU64::new(0),
        without_copies: AtomicBool::new(false),
        state: Mutex::default(),
    };
    let made = Box::into_raw(Box::new(made));
    let before = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or a leaked recorder.
    let is_of_parent = unsafe { before.as_ref() }.is_none_or(|before| !before.is_current());
    let is_stored = is_of_parent
        && CURRENT.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !is_stored {
        // SAFETY: this recorder was not stored, so no other thread has the box.
        drop(unsafe { Box::from_raw(made) });
    }
    let recorder = existing();
    if is_stored && let Some(recorder) = recorder {
        publication::begin(|| recorder.devices());
    }
    recorder
}

impl Recorder {
    /// Records an allocation. If the device is current and its live bytes have grown enough, also
    /// records its free memory.
    pub(crate) fn allocated(&'static self, block: Block, stack: &CallStack, is_current: bool) {
        let sample = {
            let (mut state, stack) = self.locked_with(stack);
            let time = self.time();
            let thread = state.thread_of_event(self, time);
            let Block { kind, device, stream, address, bytes, .. } = block;
            state.write(&Record::Allocate {
                time,
                thread,
                kind,
                device,
                stream,
                address: Address(address),
                bytes,
                stack,
            });
            state.insert(block);
            if kind == MemoryKind::Physical {
                state.mappings.create(address);
            }
            kind.counts_on_device() && state.count(device, bytes)
        };
        let read_before = self.read_before.load(Ordering::Relaxed);
        if sample && is_current && read_before & bit(block.device) != 0 {
            self.sample(block.device);
        }
    }

    /// Records a request that failed with `code`.
    pub(crate) fn failed(
        &'static self,
        block: Block,
        stack: &CallStack,
        code: CUresult,
        is_limit: bool,
    ) {
        let (mut state, stack) = self.locked_with(stack);
        let time = self.time();
        let thread = state.thread_of_event(self, time);
        let Block { kind, device, stream, bytes, .. } = block;
        let (code, is_limit) = (code.0, u32::from(is_limit));
        let code = u32::try_from(code).unwrap_or(u32::MAX);
        state.write(&Record::Fail {
            time,
            thread,
            kind,
            device,
            stream,
            bytes,
            stack,
            code,
            is_limit,
        });
    }

    /// Records a free, before the driver frees the memory. Returns the memory; `None` if it was not
    /// recorded.
    pub(crate) fn freed(&'static self, space: u32, address: u64, stream: u64) -> Option<Block> {
        let mut state = self.locked();
        let block = state.live.remove(&(space, address))?;
        state.write_free(self, &block, stream);
        Some(block)
    }

    /// Records that the last free of the memory failed.
    pub(crate) fn free_failed(&self, block: Block) {
        self.locked().restore(self.time(), block);
    }

    /// Removes references to physical memory. If memory has no references left, records its free.
    /// Returns each removed reference, with the memory if it was freed.
    pub(crate) fn remove_references(
        &'static self,
        remove: impl FnOnce(&mut Mappings) -> Vec<Reference>,
    ) -> Vec<(Reference, Option<Block>)> {
        let mut state = self.locked();
        let removed = remove(&mut state.mappings).into_iter().map(|reference| {
            let key = (MemoryKind::Physical.space(), reference.handle);
            let freed = reference.is_last.then(|| state.live.remove(&key)).flatten();
            if let Some(block) = &freed {
                state.write_free(self, block, 0);
            }
            (reference, freed)
        });
        removed.collect()
    }

    /// Restores references to physical memory, because the call that removes them failed.
    pub(crate) fn restore_references(&self, removed: &[(Reference, Option<Block>)]) {
        let mut state = self.locked();
        for (reference, freed) in removed {
            state.mappings.restore(reference);
            if let Some(block) = freed {
                state.restore(self.time(), *block);
            }
        }
    }

    /// Records the end of a context as a free of its blocks. Returns the blocks.
    pub(crate) fn context_ended(&'static self, context: CUcontext) -> Vec<Block> {
        let mut state = self.locked();
        let is_ended = |block: &Block| {
            block.context == context
                && !matches!(block.kind, MemoryKind::Physical | MemoryKind::Imported)
        };
        let blocks: Vec<_> = state.live.values().filter(|block| is_ended(block)).copied().collect();
        for block in &blocks {
            state.live.remove(&block.key());
            state.write_free(self, block, 0);
        }
        blocks
    }

    pub(crate) fn has_copies(&self) -> bool {
        !self.without_copies.load(Ordering::Relaxed)
    }

    /// Returns the recorded kind of the memory at an address; `None` if no kind is recorded.
    pub(crate) fn memory_of_copy(&self, address: u64) -> Option<CopyMemory> {
        self.locked().copies.memory(address)
    }

    pub(crate) fn copied(&'static self, copy: Copy, stack: &CallStack) {
        let (mut state, stack) = self.locked_with(stack);
        if state.is_ended {
            return self.without_copies.store(true, Ordering::Relaxed);
        }
        let time = self.time();
        for sum in state.copies.add(&copy, stack, time) {
            state.write(&sum);
        }
    }

    /// Notes the start of the program's NVTX range. The range is recorded with its first memory
    /// event. Returns the range's number; 0 if nothing is recorded.
    pub(crate) fn range_started(&'static self, name: String, of_thread: bool) -> u32 {
        if settings::get().output.is_none() {
            return 0;
        }
        let mut state = self.locked();
        if state.is_ended {
            return 0;
        }
        let thread = if of_thread { state.threads.number(self) } else { 0 };
        state.ranges.start(self.time(), thread, name)
    }

    /// Records the end of a range, if its start is recorded.
    pub(crate) fn range_ended(&self, range: u32) {
        let mut state = self.locked();
        let State { capture, ranges, .. } = &mut *state;
        ranges.end(range, self.time(), capture.as_mut());
    }

    /// Calls `change` with the mappings of physical memory.
    pub(crate) fn mappings<R>(&self, change: impl FnOnce(&mut Mappings) -> R) -> R {
        change(&mut self.locked().mappings)
    }

    /// Records that physical memory was mapped. If `handle` is `None`, records that the mappings in
    /// the range ended. Does nothing unless blocks of pools are recorded.
    pub(crate) fn mapped(&self, address: u64, bytes: u64, handle: Option<u64>) {
        if !settings::get().frameworks {
            return;
        }
        let mut state = self.locked();
        let (time, address) = (self.time(), Address(address));
        state.write(&match handle {
            Some(handle) => Record::Map { time, address, bytes, handle },
            None => Record::Unmap { time, address, bytes },
        });
    }

    /// Records a device at its first use, and its free memory before that use. The free memory is
    /// read only for the current device: the driver has no function for other devices.
    pub(crate) fn note_device(&self, device: i32, is_current: bool) {
        let Ok(ordinal) = u32::try_from(device) else { return };
        let is_new = |known: &AtomicU64| {
            let bit = bit(ordinal);
            known.load(Ordering::Relaxed) & bit != bit
                && known.fetch_or(bit, Ordering::Relaxed) & bit == 0
        };
        if is_new(&self.devices) {
            self.write_device(device, ordinal);
            if is_current && is_new(&self.read_before) {
                self.sample(ordinal);
            }
        }
    }

    fn write_device(&self, device: i32, ordinal: u32) {
        let mut name = [0 as c_char; 128];
        let mut bytes = 0_usize;
        // SAFETY: the pointer is valid until the call returns.
        let place = unsafe { (&raw mut bytes).typed() };
        let named = real::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device);
        let _ = real::cuDeviceTotalMem_v2(place, device);
        let letters = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
        let name = String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned();
        let name = if named.is_success() { &*name } else { "" };
        let limit = limit::of_device(device).map(|(bytes, _)| bytes);
        let mut state = self.locked();
        state.write(&Record::Device { ordinal, name, bytes: bytes as u64 });
        if let Some(bytes) = limit {
            state.write(&Record::Limit { device: ordinal, bytes });
        }
    }

    /// Records the exit. Destructors of libraries that run later may still free memory, so the
    /// recording goes on.
    fn exit(&self) {
        let Some(mut state) = lock_at_exit(&self.state) else { return };
        let time = self.time();
        let State { capture: Some(capture), copies, ranges, .. } = &mut *state else { return };
        ranges.write_lost(capture);
        copies.unwritten(time).iter().for_each(|sum| capture.write(sum));
        capture.exit(time);
    }

    /// Records the free and total memory of the current device.
    fn sample(&self, device: u32) {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the pointers are valid until the call returns.
        let places = unsafe { ((&raw mut free).typed(), (&raw mut total).typed()) };
        if real::cuMemGetInfo_v2(places.0, places.1).is_success() {
            let mut state = self.locked();
            let (time, free, total) = (self.time(), free as u64, total as u64);
            state.write(&Record::DriverMemory { time, device, free, total });
        }
    }

    /// Locks the state, and returns the number of a stack. If the stack is new or a library was
    /// closed, first reads the loaded files, without the state's lock. The reading takes the
    /// loader's lock, and a thread that holds the loader's lock may wait for the state's lock.
    fn locked_with(&self, stack: &CallStack) -> (MutexGuard<'_, State>, u32) {
        let mut state = self.locked();
        if let Some(known) = state.known(stack) {
            return (state, known);
        }
        drop(state);
        let closes = closes::count();
        let loaded = loaded_modules();
        let mut state = self.locked();
        state.closes = closes;
        state.set_key(stack);
        let State { capture, key, .. } = &mut *state;
        let number = capture.as_mut().map_or(0, |capture| {
            let lines = stack.python().iter().filter_map(|frame| frame.line());
            capture.stack(key, stack.addresses(), lines, &loaded)
        });
        (state, number)
    }

    fn time(&self) -> Time {
        Time(clock_ns().saturating_sub(self.began_ns))
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn devices(&self) -> Vec<(u32, DeviceBytes)> {
        let state = self.locked();
        let mut devices: Vec<_> =
            state.devices.iter().map(|(device, (bytes, _))| (*device, *bytes)).collect();
        devices.sort_unstable_by_key(|(device, _)| *device);
        devices
    }
}

impl ThreadEnds for Recorder {
    fn is_current(&self) -> bool {
        self.forks == forks::count()
    }

    fn thread_ended(&self, thread: u32, name: &str) {
        let mut state = self.locked();
        let time = self.time();
        let State { capture, threads, ranges, .. } = &mut *state;
        ranges.end_thread(thread, time, capture.as_mut());
        let thread = threads.ended(thread);
        if thread != 0 {
            state.write(&Record::ThreadEnd { time, thread, name });
        }
    }
}

impl State {
    /// Adds live memory. After the recording, a block is kept only if a limit is set, because the
    /// limit needs the block's size when the block is freed.
    fn insert(&mut self, block: Block) {
        if !self.is_ended {
            self.copies.allocated(block.kind, block.address, block.bytes);
        }
        if !self.is_ended || settings::get().limit.is_some() {
            self.live.insert(block.key(), block);
        }
    }

    /// Adds memory again, because its free failed.
    fn restore(&mut self, time: Time, block: Block) {
        let (space, address) = (block.kind.space(), Address(block.address));
        self.write(&Record::FreeFailed { time, space, address });
        if block.kind.counts_on_device() {
            self.count(block.device, block.bytes);
        }
        self.insert(block);
    }

    /// Adds the bytes of an allocation to the device. Returns `true` if the live bytes have grown
    /// so much that the device's free memory must be read.
    fn count(&mut self, device: u32, bytes: u64) -> bool {
        let first = (DeviceBytes::default(), SAMPLE_BYTES);
        let (device, next) = self.devices.entry(device).or_insert(first);
        device.live = device.live.saturating_add(bytes);
        device.peak = device.peak.max(device.live);
        let is_due = device.live >= *next && !self.is_ended;
        if is_due {
            *next = device.live + device.live / 8 + SAMPLE_BYTES;
        }
        is_due
    }

    fn write_free(&mut self, recorder: &'static Recorder, block: &Block, stream: u64) {
        self.copies.freed(block.kind, block.address);
        if block.kind.counts_on_device()
            && let Some((device, _)) = self.devices.get_mut(&block.device)
        {
            device.live = device.live.saturating_sub(block.bytes);
        }
        let time = recorder.time();
        let thread = self.thread_of_event(recorder, time);
        let (space, address) = (block.kind.space(), Address(block.address));
        self.write(&Record::Free { time, thread, space, stream, address });
    }

    /// Returns the capture's number for the calling thread. Records the open ranges, and the thread
    /// if this is its first call. Call this function before writing a memory event.
    fn thread_of_event(&mut self, recorder: &'static Recorder, time: Time) -> u32 {
        if self.capture().is_none() {
            return 0;
        }
        let State { capture: Some(capture), threads, ranges, .. } = self else { return 0 };
        let thread = threads.number(recorder);
        ranges.write(capture, |capture, thread, time| threads.recorded(thread, time, capture));
        threads.recorded(thread, time, capture)
    }

    /// Returns the number of a recorded stack; 0 for an empty stack, or if nothing is recorded.
    /// Returns `None` for a new stack. After a library was closed, returns `None` too, because
    /// other code may now be at the stack's addresses.
    fn known(&mut self, stack: &CallStack) -> Option<u32> {
        if stack.is_empty() || self.capture().is_none() {
            return Some(0);
        }
        if self.closes != closes::count() {
            return None;
        }
        self.set_key(stack);
        self.capture.as_ref()?.known_stack(&self.key)
    }

    /// Sets the key of a stack: the addresses, a zero, and the words of each frame of Python.
    fn set_key(&mut self, stack: &CallStack) {
        self.key.clear();
        self.key.extend_from_slice(stack.addresses());
        self.key.push(0);
        self.key.extend(stack.python().iter().flat_map(|frame| frame.words()));
    }

    fn write(&mut self, record: &Record<'_>) {
        if let Some(capture) = self.capture() {
            capture.write(record);
        }
    }

    /// Returns the capture, and creates its file at the first call. `None` if nothing is recorded.
    fn capture(&mut self) -> Option<&mut ProcessCapture> {
        if self.capture.is_none() && !self.is_ended {
            self.capture = open();
            self.is_ended = self.capture.is_none();
        }
        if self.capture.as_ref()?.stopped().is_some() {
            self.stop();
        }
        self.capture.as_mut()
    }

    /// Ends the recording, and frees the memory that only the recording needs.
    fn stop(&mut self) {
        let ended = State { is_ended: true, ..State::default() };
        let before = mem::replace(self, ended);
        if settings::get().limit.is_some() {
            (self.live, self.mappings) = (before.live, before.mappings);
        }
    }
}

/// Creates the file. Returns `None` if nothing is to be recorded, or if the file cannot be created.
fn open() -> Option<ProcessCapture> {
    let settings = settings::get();
    let template = settings.output.as_deref()?;
    let opened = ProcessCapture::create(template, settings.max_size, stopped);
    let opened = opened.map_err(|error| {
        let path = with_process_id(template.as_ref());
        let path = path.display();
        messages::write(&format!("{path}: {error}; the program goes on without a recording"));
    });
    let mut capture = opened.ok()?;
    if settings.frameworks {
        capture.expect_pools();
    }
    if let (Some(list), Some(path)) = (&settings.list, capture.path()) {
        add_to_list(list, path);
    }
    Some(capture)
}

/// Appends a path to the list by which `gpuheap run` finds the captures. If the run has ended, the
/// list is gone.
fn add_to_list(list: &Path, path: &Path) {
    let entry = [path.as_os_str().as_bytes(), b"\0"].concat();
    messages::without_signals(|| {
        let file = OpenOptions::new().append(true).open(list);
        match file.and_then(|mut file| file.write_all(&entry)) {
            Err(error) if error.kind() != ErrorKind::NotFound => messages::write(&format!(
                "{}: the summary will not have this capture: {}: {error}",
                path.display(),
                list.display()
            )),
            _ => {}
        }
    });
}

fn stopped(error: &io::Error) {
    messages::write(&format!(
        "recording stopped: {error}; the program goes on, and the capture holds all calls until now"
    ));
}

/// Returns the bit of a device; 0 for devices beyond the 64th.
fn bit(device: u32) -> u64 {
    1_u64.checked_shl(device).unwrap_or(0)
}

fn clock_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Exit handler. The loader calls it after the program's exit handlers and the destructors of the
/// program's libraries.
#[used]
// SAFETY: the section holds functions without arguments. The loader calls them at the exit.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    without_panic(|| {
        let own = existing().filter(|recorder| recorder.pid == std::process::id());
        // If a signal handler interrupted this library and called `exit`, there is no guard: the
        // recorder's state may be incomplete.
        let guard = Guard::enter();
        if let (Some(recorder), Some(_guard)) = (own, guard) {
            publication::end();
            recorder.exit();
        }
    });
}
