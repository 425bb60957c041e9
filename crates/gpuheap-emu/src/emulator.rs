//! Defines the emulator, its lock, the start and the end of a driver call, and methods for tests.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_driver::{CUdevice, CUdeviceptr, CUresult, fork};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::state::calls::{Counts, GIVES_WORK, SYMBOLS, symbol_index};
use crate::state::capture::may_disturb;
use crate::state::device::Usage;
use crate::state::{State, context};
use crate::{ChecksOff, FaultPlan, Finding, Options, Outcome, Schedule};

/// An emulated CUDA driver with its devices.
///
/// A process may have any number of emulators. They share nothing. Several threads can use one
/// emulator through an `Arc`.
///
/// An emulator that was initialised (`cuInit`) before a fork has no device in the child process,
/// like a real driver. In the child, driver calls return `CUDA_ERROR_NOT_INITIALIZED`, and the
/// methods of this type do nothing and return empty results. The methods take no lock there,
/// because a thread of the parent may have held the lock during the fork.
pub struct Emulator {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) state: Mutex<State>,
    /// Condition variable that is notified when a callback returns or work is queued.
    pub(crate) changed: Condvar,
    /// Identifier of the emulator in this process. A thread that runs a callback stores it in
    /// `IN_CALLBACK`.
    pub(crate) instance: u64,
    /// True if the checks look for misuse.
    pub(crate) checks: bool,
    /// Fork count at the driver's initialisation, plus 1; 0 before the initialisation.
    initialised_in: AtomicU64,
    /// Number that grows when the peak of a device grows, so that a reader needs no lock to see it.
    pub(crate) peak_mark: AtomicU64,
    /// Number of driver calls that were refused because this process is a forked child.
    refused: AtomicU64,
}

static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

impl Emulator {
    /// Creates an emulator with nothing allocated.
    pub fn new(options: Options) -> Emulator {
        let (with_worker, checks) = (options.worker, options.checks);
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(options)),
            changed: Condvar::new(),
            instance: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
            checks,
            initialised_in: AtomicU64::new(0),
            peak_mark: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        if with_worker {
            start_worker(&shared);
        }
        Emulator { shared }
    }

    /// Returns the emulator's number. Numbers are unique in this process and start at 1.
    pub fn number(&self) -> u64 {
        self.shared.instance
    }

    /// Returns the findings of the checks so far, oldest first. Only the first 1000 are kept. If
    /// more were found, the last returned finding has the kind
    /// [`Dropped`](crate::FindingKind::Dropped) with the number of dropped findings.
    ///
    /// # Errors
    ///
    /// [`ChecksOff`] if the emulator was made with [`Options::checks`] off, or if this process is a
    /// forked child.
    pub fn findings(&self) -> Result<Vec<Finding>, ChecksOff> {
        let state = self.shared.lock().ok_or(ChecksOff)?;
        if state.checker.is_some() { Ok(state.findings.all()) } else { Err(ChecksOff) }
    }

    /// Advances the virtual clock by a duration and does the work that is due at the new time. The
    /// clock stops at its end of 584 years.
    pub fn advance(&self, by: Duration) {
        let Some(mut call) = self.shared.call("Emulator::advance") else { return };
        let now = call.state.clock.saturating_add(nanoseconds(by));
        call.advance_to(now);
    }

    /// Sets the virtual clock and does the work that is due at the new time. An earlier time has no
    /// effect. The clock stops at its end of 584 years. The work itself takes no virtual time.
    pub fn set_time(&self, now: Duration) {
        if let Some(mut call) = self.shared.call("Emulator::set_time") {
            call.advance_to(nanoseconds(now));
        }
    }

    /// Returns the time of the virtual clock.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.shared.lock().map_or(0, |state| state.clock))
    }

    /// Does all queued work of all streams.
    pub fn run_to_idle(&self) {
        if let Some(mut call) = self.shared.call("Emulator::run_to_idle") {
            call.complete_everything();
        }
    }

    /// Returns the memory in use on a device; zeros if there is no such device.
    pub fn usage(&self, device: CUdevice) -> Usage {
        let Some(state) = self.shared.lock() else { return Usage::default() };
        usize::try_from(device)
            .ok()
            .and_then(|device| state.devices.get(device))
            .map_or_else(Usage::default, |device| device.usage(state.memory_limit()))
    }

    /// Returns a figure that grows when the peak memory of a device grows. It has no other meaning.
    /// Takes no lock.
    pub fn peak_mark(&self) -> u64 {
        self.shared.peak_mark.load(Ordering::Relaxed)
    }

    /// Returns the number of driver calls so far. In a forked child, returns the number of calls
    /// that were refused in this child.
    pub fn calls(&self) -> u64 {
        match self.shared.lock() {
            Some(state) => state.calls.total,
            None => self.shared.refused.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of calls so far of the function `symbol`; zero if the table has no such
    /// symbol.
    pub fn calls_of(&self, symbol: &str) -> u64 {
        let Some(index) = symbol_index(symbol) else { return 0 };
        self.shared.lock().map_or(0, |state| state.calls.of[index])
    }

    /// Returns each function that refused calls as not supported, with the number of refused calls.
    pub fn refused(&self) -> Vec<(&'static str, u64)> {
        let Some(state) = self.shared.lock() else { return Vec::new() };
        let counts = SYMBOLS.iter().copied().zip(state.calls.refused.iter().copied());
        counts.filter(|(_, count)| *count != 0).collect()
    }

    /// Returns counts of launches and copies, and of calls that failed.
    pub fn counts(&self) -> Counts {
        self.shared.lock().map_or_else(Counts::default, |state| state.counts)
    }

    /// Replaces the plan of failures. The new plan counts calls from now on.
    pub fn set_faults(&self, plan: FaultPlan) {
        let Some(mut state) = self.shared.lock() else { return };
        state.calls.planned_from = (state.calls.total, state.calls.of.clone());
        state.options.faults = plan;
    }

    /// Marks a range of device memory as never written. Call this when an allocator of the program
    /// hands out part of a larger allocation, because the driver does not see such a block.
    pub fn handed_out(&self, address: CUdeviceptr, bytes: u64) {
        if let Some(mut call) = self.shared.call("Emulator::handed_out") {
            call.hand_out(address, bytes);
        }
    }

    /// Forgets the content of a range of device memory: marks it as never written. If one copy or
    /// fill wrote the whole range since the last launch, keeps the content. A framework calls this
    /// after each kernel or copy that changed the range in place.
    pub fn changed(&self, address: CUdeviceptr, bytes: u64) {
        if let Some(mut call) = self.shared.call("Emulator::changed") {
            call.change(address, bytes);
        }
    }

    /// If kernels are not run, writes a repeated value to a range of device memory. A framework
    /// calls this after an operation whose kernel would have written that value.
    pub fn filled(&self, address: CUdeviceptr, bytes: u64, value: &[u8]) {
        if let Some(mut call) = self.shared.call("Emulator::filled") {
            call.fill_by_kernel(address, bytes, value);
        }
    }

    /// Returns the emulator's options.
    pub fn options(&self) -> Options {
        self.shared.lock().map_or_else(Options::default, |state| state.options.clone())
    }

    /// Starts one call of the driver API: counts the call, applies the plan of failures, and does
    /// the queued work that the schedule picks.
    pub(crate) fn enter(&self, symbol: usize) -> Outcome<Call<'_>> {
        let Some(mut call) = self.shared.call(SYMBOLS[symbol]) else {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(CUresult::ERROR_NOT_INITIALIZED);
        };
        if IN_CALLBACK.get() == self.shared.instance {
            call.find_callback_misuse();
            return Err(CUresult::ERROR_NOT_PERMITTED);
        }
        call.state.calls.count(symbol);
        if call.state.options.faults.has_faults() {
            call.apply_faults(symbol)?;
        }
        if !call.state.captures.active.is_empty()
            && may_disturb(SYMBOLS[symbol])
            && call.state.captures.break_by(context::this_thread())
        {
            return Err(CUresult::ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if call.state.pending != 0 {
            call.progress();
        }
        Ok(call)
    }
}

/// Discards queued work without doing it, and returns pinned and managed memory to the system.
impl Drop for Emulator {
    fn drop(&mut self) {
        match self.shared.lock() {
            Some(mut state) => state.closing = true,
            // A thread of the parent may have been changing the state during the fork, so the state
            // must not be dropped.
            None => std::mem::forget(self.shared.clone()),
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Locks the state for one call; `None` in a forked child, as for [`lock`](Shared::lock).
    pub(crate) fn call(&self, symbol: &'static str) -> Option<Call<'_>> {
        Some(Call { shared: self, symbol, request: None, short_of: None, state: self.lock()? })
    }

    /// Locks the state; `None` in a process that was forked off after the driver was initialised.
    /// In such a process, nothing would release a lock that another thread of the parent held.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, State>> {
        let initialised_in = self.initialised_in.load(Ordering::Relaxed);
        let is_here = initialised_in == 0 || initialised_in == u64::from(fork::count()) + 1;
        is_here.then(|| self.state.lock())
    }

    /// Records that this process initialised the driver.
    pub(crate) fn note_initialised(&self) {
        self.initialised_in.store(u64::from(fork::watch()) + 1, Ordering::Relaxed);
    }
}

/// One call that holds the emulator's lock. Its methods are the driver API (in `api`), the engine
/// that does queued work (in `engine`) and the checks (in `check`).
pub(crate) struct Call<'e> {
    pub(crate) shared: &'e Shared,
    /// Symbol of the called function, for findings.
    pub(crate) symbol: &'static str,
    /// This call's request for device memory: device, bytes, and address of the result variable.
    request: Option<(usize, u64, u64)>,
    /// Request that exceeded a device's free memory: device, requested bytes, and the device's free
    /// bytes.
    pub(crate) short_of: Option<(usize, u64, u64)>,
    pub(crate) state: MutexGuard<'e, State>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.state.captures.due.is_any() {
            self.end_user_objects();
        }
    }
}

impl Call<'_> {
    /// Records this call's request for device memory. `place` is the address of the result
    /// variable.
    pub(crate) fn note_request(&mut self, device: usize, bytes: u64, place: u64) {
        self.request = Some((device, bytes, place));
    }

    /// Counts a call's outcome and returns its code.
    pub(crate) fn end(&mut self, symbol: usize, outcome: Outcome) -> CUresult {
        if GIVES_WORK[symbol] {
            HAS_WORKED.set(true);
        }
        if self.request.is_some() || self.short_of.is_some() {
            self.keep_request(outcome);
        }
        let Err(code) = outcome else { return CUresult::SUCCESS };
        match code {
            CUresult::ERROR_NOT_SUPPORTED => self.state.calls.refused[symbol] += 1,
            CUresult::ERROR_OUT_OF_MEMORY => self.state.counts.out_of_memory += 1,
            _ => {}
        }
        code
    }

    /// Stores the call's request for device memory, so that [`take_request`] can return it.
    fn keep_request(&self, outcome: Outcome) {
        let is_granted = match outcome {
            Ok(()) => true,
            Err(CUresult::ERROR_OUT_OF_MEMORY) => false,
            Err(_) => return,
        };
        let short = self.short_of.filter(|_| !is_granted);
        let short = short.map(|(device, bytes, _)| (device, bytes, 0));
        let Some((device, bytes, place)) = self.request.or(short) else { return };
        let free_bytes = match (is_granted, self.short_of) {
            (true, _) => 0,
            (false, Some((_, _, free))) => free,
            (false, None) => self.state.devices[device].free_bytes(self.state.memory_limit()),
        };
        let device = device as CUdevice;
        let (function, is_after_work) = (self.symbol, HAS_WORKED.take());
        let request =
            Request { function, device, bytes, place, free_bytes, is_granted, is_after_work };
        REQUEST.set(Some(request));
    }

    fn apply_faults(&mut self, symbol: usize) -> Outcome {
        let (overall, own) = self.state.calls.since_plan(symbol);
        let planned: Vec<_> =
            self.state.options.faults.at(self.symbol, overall, own).cloned().collect();
        for fault in planned {
            if !fault.delay.is_zero() {
                MutexGuard::unlocked(&mut self.state, || thread::sleep(fault.delay));
            }
            if let Some(code) = fault.code {
                if fault.context_lost
                    && let Some(context) = self.current_handle()
                    && let Some(context) = self.state.contexts.get_mut(context)
                {
                    context.error = Some(code);
                }
                return Err(code);
            }
        }
        Ok(())
    }
}

/// Time that the worker sleeps between rounds while no queued work is due.
const ROUND: Duration = Duration::from_millis(1);

/// Starts the thread that makes progress between driver calls. The thread ends when the emulator is
/// dropped.
fn start_worker(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    let body = move || {
        let mut last = Instant::now();
        while let Some(shared) = weak.upgrade() {
            let Some(mut call) = shared.call("worker") else { return };
            if call.state.closing {
                return;
            }
            if call.state.pending == 0 {
                // During the wait, the worker's reference keeps the emulator alive. So the wait
                // ends after a while, and the worker checks whether the emulator was dropped.
                shared.changed.wait_for(&mut call.state, 50 * ROUND);
                last = Instant::now();
                continue;
            }
            if let Schedule::Lag(_) = call.state.options.schedule {
                let now = call.state.clock.saturating_add(nanoseconds(last.elapsed()));
                last = Instant::now();
                call.advance_to(now);
            } else {
                call.run_one_round();
            }
            shared.changed.wait_for(&mut call.state, ROUND);
        }
    };
    // If the thread does not start, driver calls that wait still do queued work. A host that waits
    // without a driver call then waits forever.
    drop(thread::Builder::new().name("gpuheap-emu".to_owned()).spawn(body));
}

thread_local! {
    /// True if the null stream is this thread's own default stream.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
    /// This thread's latest copy to the host since the last [`take_copy_to_host`].
    static COPY_TO_HOST: Cell<Option<CopyToHost>> = const { Cell::new(None) };
    /// `true` if this thread launched, filled or uploaded after its latest request for memory.
    static HAS_WORKED: Cell<bool> = const { Cell::new(false) };
    /// This thread's latest request for device memory.
    static REQUEST: Cell<Option<Request>> = const { Cell::new(None) };
    /// Identifier of the emulator whose callback this thread is running, or 0.
    pub(crate) static IN_CALLBACK: Cell<u64> = const { Cell::new(0) };
}

/// A driver call's request for device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Symbol of the called function.
    pub function: &'static str,
    /// Device of the memory.
    pub device: CUdevice,
    /// Requested bytes.
    pub bytes: u64,
    /// Address at which the caller wants the result; 0 if the function has no such result.
    pub place: u64,
    /// Free bytes of the device when the request was refused; 0 if it was granted.
    pub free_bytes: u64,
    /// `false` if the device had too little memory.
    pub is_granted: bool,
    /// `true` if the thread gave the device work after its last request: it launched kernels,
    /// filled memory or uploaded data.
    pub is_after_work: bool,
}

impl Request {
    /// Creates a request with `free_bytes` 0 and `is_after_work` false.
    pub fn new(
        function: &'static str,
        device: CUdevice,
        bytes: u64,
        place: u64,
        is_granted: bool,
    ) -> Request {
        Request { function, device, bytes, place, free_bytes: 0, is_granted, is_after_work: false }
    }
}

/// Takes the calling thread's latest request for device memory; `None` if the thread made no
/// request since the last call.
pub fn take_request() -> Option<Request> {
    REQUEST.take()
}

/// Stores a request as the calling thread's latest request, for [`take_request`]. A heap calls this
/// for a request that it refused without a driver call.
pub fn put_request(request: Request) {
    REQUEST.set(Some(request));
}

/// A copy from device memory to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyToHost {
    /// Address of the copied bytes in host memory; 0 if there are gaps between the rows.
    pub address: u64,
    /// Number of copied bytes.
    pub bytes: u64,
    /// `true` if copies and fills wrote all of these bytes. If kernels are not run, other bytes
    /// read as 0.
    pub is_written: bool,
}

/// Takes the latest copy to the host by the calling thread's driver calls; `None` if there was no
/// copy since the thread last called this function.
pub fn take_copy_to_host() -> Option<CopyToHost> {
    COPY_TO_HOST.take()
}

/// Stores a copy for [`take_copy_to_host`].
pub(crate) fn note_copy_to_host(copy: CopyToHost) {
    COPY_TO_HOST.set(Some(copy));
}

/// Calls `f`. During the call, a null stream means the calling thread's own default stream, as for
/// the `_ptsz` and `_ptds` symbols of the driver API.
pub fn with_per_thread_default_stream<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            PER_THREAD.set(self.0);
        }
    }
    let _restore = Restore(PER_THREAD.replace(true));
    f()
}

/// Returns whether a null stream means the calling thread's own default stream.
pub(crate) fn null_is_per_thread() -> bool {
    PER_THREAD.get()
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
