//! The recording of this process: live memory, and the capture's records.

use std::ffi::c_char;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gpuheap_capture::{Address, MemoryKind, ProcessCapture, Record, Time, loaded_modules};
use gpuheap_catch::messages;
use gpuheap_driver::abi::Arg as _;
use gpuheap_driver::{CUcontext, CUresult, fork};
use rustc_hash::FxHashMap;

use crate::limit::Charge;
use crate::mappings::Mappings;
use crate::stacks::CallStack;
use crate::threads::ThreadEnds;
use crate::{real, settings, threads};

/// Growth of a device's live bytes after which the driver's figure is read again: this many bytes
/// and an eighth. Reading takes 20 to 100 µs on a GPU.
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

/// Recording of a process. A forked child makes another one.
pub(crate) struct Recorder {
    forks: u32,
    /// Process that made the recorder. A child that a raw `clone` made has the same recorder.
    pid: u32,
    /// Time of the monotonic clock at the start, nanoseconds.
    began_ns: u64,
    /// Devices that are known, as bits.
    devices: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Capture; `None` before the first record, and if nothing is recorded.
    capture: Option<ProcessCapture>,
    /// `true` once the recording ended. Live memory is still counted, for the limit.
    is_ended: bool,
    live: FxHashMap<(u32, u64), Block>,
    /// Live bytes of each device, and the bytes at which the driver's figure is read next.
    devices: FxHashMap<u32, [u64; 2]>,
    /// Key of the last stack, by [`State::set_key`].
    key: Vec<u64>,
    mappings: Mappings,
}

static CURRENT: AtomicPtr<Recorder> = AtomicPtr::new(ptr::null_mut());

/// Returns the recorder of this process, if it has one.
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
        forks: fork::watch(),
        pid: std::process::id(),
        began_ns: clock_ns(),
        devices: AtomicU64::new(0),
        state: Mutex::default(),
    };
    let made = Box::into_raw(Box::new(made));
    let before = CURRENT.load(Ordering::Acquire);
    // SAFETY: the pointer is null or a leaked recorder.
    let is_of_parent =
        unsafe { before.as_ref() }.is_none_or(|before| before.forks != fork::count());
    let is_stored = is_of_parent
        && CURRENT.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !is_stored {
        // SAFETY: another thread was faster, so the box is not shared.
        drop(unsafe { Box::from_raw(made) });
    }
    existing()
}

impl Recorder {
    /// Records an allocation.
    pub(crate) fn allocated(&'static self, block: Block, stack: &CallStack) {
        let sample = {
            let (mut state, stack) = self.locked_with(stack);
            let time = self.time();
            let thread = state.thread(self, time);
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
            state.live.insert(block.key(), block);
            kind.counts_on_device() && state.count(device, bytes)
        };
        if sample {
            self.sample(block.device);
        }
    }

    /// Records a request that failed with a code.
    pub(crate) fn failed(
        &'static self,
        block: Block,
        stack: &CallStack,
        code: CUresult,
        is_limit: bool,
    ) {
        let (mut state, stack) = self.locked_with(stack);
        let time = self.time();
        let thread = state.thread(self, time);
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
        let mut state = self.locked();
        let (time, space) = (self.time(), block.kind.space());
        state.write(&Record::FreeFailed { time, space, address: Address(block.address) });
        if block.kind.counts_on_device() {
            state.count(block.device, block.bytes);
        }
        state.live.insert(block.key(), block);
    }

    /// Records that a context ended with its memory. Returns the memory.
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

    /// Calls `change` with the mappings of physical memory.
    pub(crate) fn mappings<R>(&self, change: impl FnOnce(&mut Mappings) -> R) -> R {
        change(&mut self.locked().mappings)
    }

    /// Records a device at its first use, and the driver's figures before that use.
    pub(crate) fn note_device(&self, ordinal: i32) {
        let bit = 1_u64.checked_shl(u32::try_from(ordinal).unwrap_or(u32::MAX)).unwrap_or(0);
        if bit == 0 || self.devices.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        if self.devices.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let mut name = [0 as c_char; 128];
        let mut bytes = 0_usize;
        // SAFETY: the pointer is valid until the call returns.
        let place = unsafe { (&raw mut bytes).typed() };
        let named = real::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, ordinal);
        let _ = real::cuDeviceTotalMem_v2(place, ordinal);
        let letters = name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
        let name = String::from_utf8_lossy(&letters.collect::<Vec<_>>()).into_owned();
        let name = if named.is_success() { &*name } else { "" };
        let ordinal = ordinal as u32;
        self.locked().write(&Record::Device { ordinal, name, bytes: bytes as u64 });
        self.sample(ordinal);
    }

    /// Ends the recording.
    pub(crate) fn end(&self, reason: &str) {
        let mut state = self.locked();
        let time = self.time();
        state.end(time, reason);
    }

    /// Records the driver's figures of the current device.
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

    /// Locks the state, and returns the number of a stack. If the stack is new, reads the loaded
    /// files first, without this lock: a thread that loads a library holds the loader's lock, and
    /// may allocate.
    fn locked_with(&self, stack: &CallStack) -> (MutexGuard<'_, State>, u32) {
        let mut state = self.locked();
        if let Some(known) = state.known(stack) {
            return (state, known);
        }
        drop(state);
        let loaded = loaded_modules();
        let mut state = self.locked();
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
}

impl ThreadEnds for Recorder {
    fn is_current(&self) -> bool {
        self.forks == fork::count()
    }

    fn thread_ended(&self, thread: u32, name: &str) {
        let mut state = self.locked();
        let time = self.time();
        state.write(&Record::ThreadEnd { time, thread, name });
    }
}

impl State {
    /// Adds the bytes of an allocation to the device. Returns `true` if the driver's figure is to
    /// be read.
    fn count(&mut self, device: u32, bytes: u64) -> bool {
        let [live, next] = self.devices.entry(device).or_insert([0, SAMPLE_BYTES]);
        *live = live.saturating_add(bytes);
        let is_due = *live >= *next;
        if is_due {
            *next = *live + *live / 8 + SAMPLE_BYTES;
        }
        is_due
    }

    fn write_free(&mut self, recorder: &'static Recorder, block: &Block, stream: u64) {
        if block.kind.counts_on_device()
            && let Some([live, _]) = self.devices.get_mut(&block.device)
        {
            *live = live.saturating_sub(block.bytes);
        }
        let time = recorder.time();
        let thread = self.thread(recorder, time);
        let (space, address) = (block.kind.space(), Address(block.address));
        self.write(&Record::Free { time, thread, space, stream, address });
    }

    /// Returns the calling thread's number. Records the thread at its first call.
    fn thread(&mut self, recorder: &'static Recorder, time: Time) -> u32 {
        if let Some(known) = threads::number() {
            return known;
        }
        let Some(capture) = self.capture() else { return 0 };
        let number = capture.thread(time, threads::id(), &threads::name());
        threads::set_number(recorder, number);
        number
    }

    /// Returns the number of a stack that is recorded or empty, or 0 if nothing is recorded.
    fn known(&mut self, stack: &CallStack) -> Option<u32> {
        if stack.is_empty() || self.capture().is_none() {
            return Some(0);
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
        if self.is_ended {
            return None;
        }
        if self.capture.is_none() {
            self.capture = open();
            self.is_ended = self.capture.is_none();
        }
        self.capture.as_mut()
    }

    fn end(&mut self, time: Time, reason: &str) {
        self.is_ended = true;
        if let Some(capture) = &mut self.capture {
            capture.end(time, reason);
        }
    }
}

/// Creates the file. Returns `None` if nothing is to be recorded.
fn open() -> Option<ProcessCapture> {
    let settings = settings::get();
    let template = settings.output.as_deref()?;
    let opened = ProcessCapture::create(template, settings.max_size, stopped);
    opened
        .map_err(|error| {
            let path = template.replace("%p", &std::process::id().to_string());
            messages::write(&format!("{path}: {error}; the program goes on without a recording"));
        })
        .ok()
}

fn stopped(error: &io::Error) {
    messages::write(&format!(
        "recording stopped: {error}; the program goes on, and the capture holds all calls until now"
    ));
}

fn clock_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Function that the loader calls at the exit, after the program's exit handlers and the
/// destructors of its libraries.
#[used]
// SAFETY: the section holds functions without arguments. The loader calls them at the exit.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // At exit, no code is left to handle a failure.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let own = existing().filter(|recorder| recorder.pid == std::process::id());
        if let Some(recorder) = own {
            recorder.end("");
        }
    }));
}
