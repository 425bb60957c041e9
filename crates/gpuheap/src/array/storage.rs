//! Storages hold the memory of arrays. An array's handles and views share one storage.

use std::any::Any;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap_driver::{CUdevice, check};
use gpuheap_pool::{Gone, PoolKind};

use super::element::Element;
use super::registration::Registered;
use crate::Caller;
use crate::array::scope_state::ScopeState;
use crate::array::target::Target;
use crate::device::{Context, Visited};
use crate::error::{Error, ErrorKind, Fault, Freed};
use crate::heap::Heap;
use crate::kind::MemoryKind;
use crate::lease::Lease;
use crate::program::{self, Callback};
use crate::stream::Stream;

/// The memory of an array, shared by its handles and views.
///
/// Work is enqueued with the storage's lock held. A free by another thread therefore happens
/// entirely before or entirely after an enqueue. The storage records the stream of its last use.
/// The next stream that uses the storage waits for the recorded stream. A free on the last stream
/// is therefore ordered after every use.
///
/// Locks are taken in this order: first the locks of storages, in the order of their addresses,
/// then the heap's lock. No code of the program is called with a lock held. In a forked child no
/// lock is taken, because a thread of the parent may have held it.
pub(crate) struct Storage {
    heap: Heap,
    kind: MemoryKind,
    bytes: u64,
    zero_on_free: bool,
    /// Stream of the heap's device on which the memory was allocated.
    home: Stream,
    /// Line of the program that made the array.
    made: Caller,
    /// `true` if a part of this block was used on a stream other than `home`.
    strayed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    /// Stream of the last use, if it is not `home`. The stream may belong to another device that
    /// can access this memory.
    last: Option<Stream>,
    /// `true` if the memory was used since its batch was uploaded. Every use sets this flag, and
    /// the end of the upload clears it.
    used_since_upload: bool,
    /// Number of borrows of the memory by the host.
    borrows: u32,
    /// Scope whose end frees the memory.
    scope: Option<Arc<ScopeState>>,
    /// Driver calls that withdraw the advice given for the memory.
    advice: Vec<DriverAdvice>,
}

pub(crate) enum Memory {
    /// Memory of the heap.
    Lease(Lease),
    /// Page-locked memory of the program.
    Registered(Registered),
    /// Part of a block. The block is freed once all its parts are freed.
    Part { address: u64, whole: Arc<Storage> },
    /// The array has no memory yet, and waits to be uploaded together with other arrays.
    Staged,
    /// Foreign memory. The owner is called when the memory is freed.
    Foreign { address: u64, owner: Option<Owner> },
    /// The memory was freed, but handles to it exist. If the host still borrows the memory, `rest`
    /// holds it until the last borrow ends, and is then given back.
    Freed { how: Freed, rest: Option<Box<Memory>> },
}

/// Callback that receives the address of foreign memory when it is freed, in stream order.
pub(crate) type Owner = Callback<Box<dyn FnOnce(u64, &Stream) + Send>>;

/// Location of a storage's memory.
pub(super) enum Place {
    At(u64),
    /// The memory is not allocated yet. Its address will be a multiple of [`STAGED_ALIGN`].
    Staged,
    /// The memory was freed, or belongs to the parent of a forked child.
    Nowhere,
}

/// Alignment, in bytes, of staged arrays. The driver's own allocations have this alignment, and
/// kernels with wide loads rely on it.
pub(crate) const STAGED_ALIGN: u64 = 256;

/// Work that remains after [`take`](Storage::take) has marked a storage as freed.
enum Taken {
    /// The memory is to be given back.
    Memory(Memory, Ending),
    /// The memory stays until the last borrow by the host ends.
    Borrowed,
    /// The memory was freed before, so no work remains.
    Nothing,
}

/// Part of a storage's state that is needed to free the memory.
struct Ending {
    /// Stream of the last use, if it is not `home`.
    last: Option<Stream>,
    /// Driver calls that withdraw the advice given for the memory.
    advice: Vec<DriverAdvice>,
}

impl Storage {
    /// Makes a storage of `memory`, for first use on the target's stream.
    pub(crate) fn new(
        target: &Target,
        kind: MemoryKind,
        bytes: u64,
        memory: Memory,
        made: Caller,
    ) -> Storage {
        let Target { heap, stream, zero_on_free, .. } = target;
        let state = State {
            memory,
            last: None,
            used_since_upload: false,
            borrows: 0,
            scope: None,
            advice: Vec::new(),
        };
        let (heap, home, zero_on_free) = (heap.clone(), stream.clone(), *zero_on_free);
        let strayed = AtomicBool::new(false);
        Storage { heap, kind, bytes, zero_on_free, home, made, strayed, state: Mutex::new(state) }
    }

    pub(crate) fn heap(&self) -> &Heap {
        &self.heap
    }

    pub(crate) fn kind(&self) -> MemoryKind {
        self.kind
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.home.context_arc()
    }

    pub(crate) fn zeroes_on_free(&self) -> bool {
        self.zero_on_free
    }

    pub(crate) fn made_at(&self) -> Caller {
        self.made
    }

    /// Returns the stream of the last use.
    pub(crate) fn stream(&self) -> Stream {
        self.peek().map_or_else(|| self.home.clone(), |state| state.stream(&self.home).clone())
    }

    /// Returns the stream of the last use or, if that stream belongs to another device, `home`.
    pub(crate) fn own_stream(&self) -> Stream {
        let stream = self.stream();
        if stream.context().is_same(self.context()) { stream } else { self.home.clone() }
    }

    /// Returns `true` if the memory was freed while handles to it exist.
    pub(crate) fn is_freed(&self) -> bool {
        self.peek().is_some_and(|state| matches!(state.memory, Memory::Freed { .. }))
    }

    /// Returns the current address, without claiming a use of the memory.
    pub(crate) fn address(&self) -> Option<u64> {
        self.peek()?.address().ok()
    }

    /// Returns the address, or an error that says why the memory has no address. The address does
    /// not change while the memory exists.
    pub(crate) fn require_address(&self) -> Result<u64, Error> {
        self.check_alive()?;
        self.lock().address()
    }

    /// Returns the location of the memory, or [`Place::Staged`] if it will be allocated later.
    pub(super) fn place(&self) -> Place {
        let Some(state) = self.peek() else { return Place::Nowhere };
        match (&state.memory, state.address()) {
            (Memory::Staged, _) => Place::Staged,
            (_, Ok(address)) => Place::At(address),
            (_, Err(_)) => Place::Nowhere,
        }
    }

    pub(crate) fn scope(&self) -> Option<Arc<ScopeState>> {
        self.peek()?.scope.clone()
    }

    /// Sets the scope whose end frees the memory.
    pub(crate) fn join(&self, scope: Option<Arc<ScopeState>>) {
        self.lock().scope = scope;
    }

    /// Marks the batch's upload as ended. The caller records an event on the stream afterwards.
    pub(crate) fn end_upload(&self) {
        let whole = {
            let mut state = self.lock();
            state.used_since_upload = false;
            state.whole()
        };
        if let Some(whole) = whole {
            whole.end_upload();
        }
    }

    /// Makes `to` the stream of last use. The caller made `to` wait for the end of the upload on
    /// `from`. If the storage was used since then, `to` waits for that use too.
    pub(crate) fn follow(&self, from: &Stream, to: &Stream) -> Result<(), Error> {
        self.check_alive()?;
        let mut visited = Visited::new();
        let whole = {
            let mut state = self.lock();
            if matches!(state.memory, Memory::Freed { .. }) {
                return Ok(());
            }
            if state.used_since_upload || !is_same_stream(state.stream(&self.home), from) {
                return self.hand_over(&mut state, to, &mut visited);
            }
            state.set_last(to.clone());
            state.whole()
        };
        whole.map_or(Ok(()), |whole| whole.follow(from, to))
    }

    /// Sets the memory of a staged array, once it is allocated.
    pub(crate) fn fill(&self, memory: Memory) {
        let mut state = self.lock();
        if matches!(state.memory, Memory::Staged) {
            state.memory = memory;
            return;
        }
        // This array was freed while it was staged, for example by the end of its scope. So
        // `memory` is given back now.
        let ending = state.ending();
        drop(state);
        let _ = self.give_back(memory, ending);
    }

    /// Moves the memory out, so that another storage can hold it.
    pub(crate) fn surrender(&self) -> Memory {
        std::mem::replace(&mut self.lock().memory, Memory::Staged)
    }

    /// Returns the block that this storage is a part of, the offset in the block, and the stream on
    /// which all parts were used. Returns `None` if this storage is not a part, or if the parts
    /// were used on several streams.
    pub(crate) fn part(&self) -> Option<(Arc<Storage>, u64, &Stream)> {
        let state = self.peek()?;
        let Memory::Part { address, whole } = &state.memory else { return None };
        let strayed = whole.strayed.load(Ordering::Relaxed);
        let start = address.checked_sub(whole.address()?)?;
        (!strayed).then(|| (whole.clone(), start, &self.home))
    }

    /// Drops the owner without calling it.
    pub(crate) fn disown(&self) {
        let nothing = Memory::Foreign { address: 0, owner: None };
        let memory = std::mem::replace(&mut self.lock().memory, nothing);
        drop(memory);
    }

    /// Makes `stream` wait for all earlier work on the memory, and calls `work` to enqueue more.
    /// `work` receives the address and `stream` or, if `stream` is `None`, the stream of the last
    /// use.
    pub(crate) fn use_on<R>(
        &self,
        stream: Option<&Stream>,
        work: impl FnOnce(u64, &Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.check_alive()?;
        let mut visited = Visited::new();
        let mut state = self.lock();
        let address = state.address()?;
        state.used_since_upload = true;
        let stream = match stream {
            Some(stream) => {
                self.hand_over(&mut state, stream, &mut visited)?;
                stream
            }
            None => state.stream(&self.home),
        };
        work(address, stream)
    }

    /// Calls `work` to enqueue work that reads `source` and writes this storage. The work runs on a
    /// stream of this storage's own device: the stream of the last use, or `home` if that stream is
    /// retired or the heap cannot use it. Then `home` waits for that stream first. The source's
    /// stream is ordered after the work.
    pub(crate) fn use_with<R>(
        &self,
        source: &Storage,
        work: impl FnOnce(u64, u64, &Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.check_alive()?;
        source.check_alive()?;
        if std::ptr::eq(self, source) {
            return self.use_on(None, |address, stream| work(address, address, stream));
        }
        // The storages are locked in the order of their addresses, so that two threads that copy in
        // opposite directions cannot deadlock.
        let (mut mine, mut theirs);
        if (self as *const Storage) < (source as *const Storage) {
            mine = self.lock();
            theirs = source.lock();
        } else {
            theirs = source.lock();
            mine = self.lock();
        }
        let (to, from) = (mine.address()?, theirs.address()?);
        (mine.used_since_upload, theirs.used_since_upload) = (true, true);
        // Takes a stream of this storage's own device. The stream of the last use may belong to a
        // peer device, without access to `source`.
        let stream = self.last_stream(mine.ending_stream())?;
        mine.last = Some(stream.clone()).filter(|stream| !is_same_stream(stream, &self.home));
        let their_stream = theirs.stream(&source.home).clone();
        let crosses = !is_same_stream(&their_stream, &stream);
        if crosses {
            stream.wait_for(&their_stream)?;
        }
        let done = work(to, from, &stream)?;
        if !crosses {
            return Ok(done);
        }
        if source.context().is_same(stream.context()) {
            theirs.set_last(stream);
            return Ok(done);
        }
        // The copy's stream is of another device, so it does not become the source's last stream.
        // Instead, the source's last stream waits for the copy.
        let ordered = their_stream.wait_for(&stream);
        if let Err(error) = ordered.or_else(|_| stream.synchronize()) {
            // The source's free has to be ordered after the copy, so the copy's stream becomes the
            // source's last stream.
            theirs.set_last(stream);
            return Err(error);
        }
        Ok(done)
    }

    /// Calls `work` to enqueue work on this storage and `others`. Storages may occur in `others`
    /// repeatedly. The work runs on a stream of this storage's own device, if possible the stream
    /// of its last use. That stream first waits for earlier work on the other storages. Addresses
    /// that the caller read before are still valid.
    pub(crate) fn use_among<R>(
        &self,
        others: &[&Storage],
        work: impl FnOnce(&Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut all: Vec<&Storage> = Vec::with_capacity(others.len() + 1);
        all.push(self);
        all.extend_from_slice(others);
        // Each storage is locked once, in the order of the storages' addresses, to avoid deadlock.
        all.sort_unstable_by_key(|storage| std::ptr::from_ref(*storage));
        all.dedup_by(|one, other| std::ptr::eq(*one, *other));
        for storage in &all {
            storage.check_alive()?;
        }
        let mut visited = Visited::new();
        let mut states: Vec<MutexGuard<'_, State>> = Vec::with_capacity(all.len());
        states.extend(all.iter().map(|storage| storage.lock()));
        for state in &states {
            state.address()?;
        }
        let mine = all.iter().position(|storage| std::ptr::eq(*storage, self)).unwrap_or(0);
        // Takes a stream of this storage's own device. The stream of the last use may belong to a
        // peer device, without access to the other storages.
        let stream = self.last_stream(states[mine].ending_stream())?;
        states[mine].last =
            Some(stream.clone()).filter(|stream| !is_same_stream(stream, &self.home));
        for (storage, state) in all.iter().zip(&mut states) {
            storage.hand_over(state, &stream, &mut visited)?;
        }
        work(&stream)
    }

    /// Waits for all work and returns the host's address. The address stays valid until
    /// [`end_borrow`](Self::end_borrow).
    pub(crate) fn begin_borrow(&self) -> Result<u64, Error> {
        self.check_alive()?;
        let mut state = self.lock();
        let address = state.host_address()?;
        let stream = state.stream(&self.home).clone();
        self.heap.begin_host_use(self.kind, &stream)?;
        state.borrows += 1;
        Ok(address)
    }

    pub(crate) fn end_borrow(&self) {
        if self.heap.is_forked() {
            return;
        }
        let (rest, ending) = {
            let mut state = self.lock();
            state.borrows = state.borrows.saturating_sub(1);
            self.heap.end_host_use(self.kind);
            if state.borrows > 0 {
                return;
            }
            let Memory::Freed { rest, .. } = &mut state.memory else { return };
            let Some(rest) = rest.take() else { return };
            (rest, state.ending())
        };
        // A destructor cannot return the error, so the heap counts the failure.
        let _ = self.give_back(*rest, ending);
    }

    /// Frees the memory, ordered after its last use. Later uses of the array return an error that
    /// names `how` it was freed. Returns `true` if this call freed the memory.
    pub(crate) fn free_early(&self, how: Freed) -> Result<bool, Error> {
        self.check_alive()?;
        match self.take(how) {
            Taken::Memory(memory, last) => self.give_back(memory, last).map(|()| true),
            Taken::Borrowed => Ok(true),
            Taken::Nothing => Ok(false),
        }
    }

    /// Waits for the last use and returns the memory to the driver instead of the cache. Returns
    /// the bytes that the driver regained.
    pub(crate) fn release(&self, how: Freed) -> Result<u64, Error> {
        self.check_alive()?;
        match self.take(how) {
            Taken::Memory(Memory::Lease(lease), ending) => {
                self.take_advice_back(&lease, &ending);
                let stream = self.last_stream(ending.last)?;
                self.heap.release(self.kind, lease, &stream, self.zero_on_free)
            }
            Taken::Memory(other, ending) => self.give_back(other, ending).map(|()| 0),
            Taken::Borrowed | Taken::Nothing => Ok(0),
        }
    }

    /// Marks the storage as freed and returns the memory to give back. Afterwards no work on the
    /// memory can be enqueued. The caller gives the memory back without the storage's lock. Wrapped
    /// memory is given back by its owner, a callback that may use the array's handles and so take
    /// the lock.
    fn take(&self, how: Freed) -> Taken {
        let mut state = self.lock();
        if matches!(state.memory, Memory::Freed { .. }) {
            return Taken::Nothing;
        }
        let freed = Memory::Freed { how, rest: None };
        let memory = std::mem::replace(&mut state.memory, freed);
        if state.borrows > 0 {
            state.memory = Memory::Freed { how, rest: Some(Box::new(memory)) };
            return Taken::Borrowed;
        }
        let ending = state.ending();
        Taken::Memory(memory, ending)
    }

    /// Gives memory back. If the free cannot be ordered after the last use, the memory stays with
    /// the heap, counted as live, and is not reused.
    fn give_back(&self, memory: Memory, ending: Ending) -> Result<(), Error> {
        match memory {
            Memory::Lease(lease) => {
                self.take_advice_back(&lease, &ending);
                let stream = match ending.last {
                    None => self.home.is_foreign().then(|| self.home.clone()),
                    last => {
                        let stream = self.last_stream(last);
                        Some(
                            stream
                                .inspect_err(|_| self.heap.inner().note_failed_free(self.kind))?,
                        )
                    }
                };
                self.heap.free(self.kind, lease, stream.as_ref(), self.zero_on_free)
            }
            Memory::Registered(registered) => {
                registered.free(&self.last_stream(ending.last)?, self.zero_on_free)
            }
            Memory::Part { address, whole } => {
                for advice in &ending.advice {
                    let _ = advice.apply(self.context(), address, self.bytes);
                }
                // The block is freed after the last use of each part. If the block's free cannot be
                // ordered after this part's last use, the host waits for that use.
                let ordered = self.last_stream(ending.last).and_then(|stream| {
                    let ordered = whole.use_on(Some(&stream), |_, _| Ok(()));
                    ordered.or_else(|_| stream.synchronize())
                });
                if ordered.is_err() {
                    std::mem::forget(whole);
                }
                ordered
            }
            Memory::Staged => Ok(()),
            Memory::Foreign { address, owner: Some(mut owner) } => {
                // After a reset of the device, the memory is gone, so the owner is not called.
                self.check_alive()?;
                let stream = self.last_stream(ending.last)?;
                // The device's context is made current, because the owner may call the driver. An
                // error is ignored, because an owner without driver calls needs no context.
                let _current = self.context().enter();
                let end = move || owner.take().map_or((), |owner| owner(address, &stream));
                program::run(end).map_err(owner_panicked)
            }
            Memory::Foreign { owner: None, .. } => Ok(()),
            Memory::Freed { rest: Some(rest), .. } => self.give_back(*rest, ending),
            Memory::Freed { rest: None, .. } => Ok(()),
        }
    }

    /// Stores the driver call that withdraws advice. The call is made when the memory is freed.
    pub(super) fn note_advice(&self, advice: DriverAdvice) {
        let mut state = self.lock();
        if !state.advice.contains(&advice) {
            state.advice.push(advice);
        }
    }

    /// Withdraws all advice. The driver would otherwise apply the advice to the next array in the
    /// same pages. If the call fails, the next array is slower, but correct.
    fn take_advice_back(&self, lease: &Lease, ending: &Ending) {
        for advice in &ending.advice {
            let _ = advice.apply(self.context(), lease.address, lease.bytes);
        }
    }

    /// Returns `true` if the memory is a registered vector of `count` elements of `T`.
    pub(super) fn is_vector_of<T: Element>(&self, count: usize) -> bool {
        match &self.lock().memory {
            Memory::Registered(registered) => registered.is_vector_of::<T>(count),
            _ => false,
        }
    }

    /// Waits for the last use of registered memory, unlocks it and returns the vector.
    pub(super) fn take_registered(&self, how: Freed) -> Result<Box<dyn Any + Send>, Error> {
        let mut state = self.lock();
        state.address()?;
        let last = self.last_stream(state.ending_stream())?;
        match std::mem::replace(&mut state.memory, Memory::Freed { how, rest: None }) {
            Memory::Registered(registered) => registered.unlock(&last),
            other => {
                state.memory = other;
                Err(ErrorKind::WrongMemory.error("the array is not registered memory".to_owned()))
            }
        }
    }

    /// Returns a stream that is ordered after every use of the memory, and that the heap accepts.
    fn last_stream(&self, last: Option<Stream>) -> Result<Stream, Error> {
        match last {
            None => Ok(self.home.clone()),
            Some(last) if !last.is_retired() && self.heap.store(self.kind).accepts(&last) => {
                Ok(last)
            }
            Some(last) => {
                let ordered = self.home.wait_for(&last);
                // If the wait cannot be enqueued, the host waits, so that the memory can be freed
                // after all.
                ordered.or_else(|_| last.synchronize())?;
                Ok(self.home.clone())
            }
        }
    }

    /// Makes `stream` wait for the last use of the storage, and records `stream` as the stream of
    /// the last use. If `stream` is of another device, a check of its access adds heaps to
    /// `visited`. The caller drops `visited` only after it has unlocked all storages. The drop may
    /// end a heap, and so call destructors of the program that use the storages.
    fn hand_over(
        &self,
        state: &mut State,
        stream: &Stream,
        visited: &mut Visited,
    ) -> Result<(), Error> {
        stream.refuse_retired()?;
        state.used_since_upload = true;
        let last = state.stream(&self.home);
        if is_same_stream(last, stream) {
            return Ok(());
        }
        let (user, owner) = (stream.context(), self.home.context());
        if !user.is_same(owner) && !self.can_be_reached_by(user, &state.memory, visited)? {
            let remedies = match user.shares_driver(owner) {
                true => "copy it there with copy_to, or allocate it as unified memory",
                false => "copy it there with copy_to",
            };
            return Err(ErrorKind::WrongDevice.error(format!(
                "the array is on {} and is used on {}, which cannot reach its memory (no peer \
                 access); {remedies}",
                owner.beside(user),
                user.beside(owner)
            )));
        }
        stream.wait_for(last)?;
        state.set_last(stream.clone());
        Ok(())
    }

    fn can_be_reached_by(
        &self,
        user: &Context,
        memory: &Memory,
        visited: &mut Visited,
    ) -> Result<bool, Error> {
        let owner = self.home.context();
        if self.kind.is_host_accessible() {
            return Ok(user.shares_driver(owner));
        }
        // The driver gives a peer access to a stream-ordered pool as a whole. After that call,
        // writes by the peer were lost (driver 590, NVIDIA bug 6098762). So a peer may use neither
        // memory of a `driver` heap nor wrapped memory. Wrapped memory may belong to such a pool.
        let may_be_pooled = self.heap.pool() == PoolKind::Driver
            || !matches!(memory, Memory::Lease(_) | Memory::Part { .. });
        Ok(!may_be_pooled && user.can_reach(owner, visited)?)
    }

    /// Returns an error in a forked child or after a reset. Call it before the lock is taken: in a
    /// forked child, a thread of the parent may have held the lock.
    fn check_alive(&self) -> Result<(), Error> {
        Ok(self.home.context().check_alive()?)
    }

    /// Locks the state, for callers that cannot return an error; `None` in a forked child.
    fn peek(&self) -> Option<MutexGuard<'_, State>> {
        (!self.heap.is_forked()).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the stream of the last use, if it is not `home` and has work left to wait for.
    fn ending_stream(&self) -> Option<Stream> {
        self.last.clone().filter(|last| !is_over(last))
    }

    fn ending(&mut self) -> Ending {
        Ending { last: self.ending_stream(), advice: std::mem::take(&mut self.advice) }
    }

    /// Returns the block that this storage is a part of.
    fn whole(&self) -> Option<Arc<Storage>> {
        match &self.memory {
            Memory::Part { whole, .. } => Some(whole.clone()),
            _ => None,
        }
    }

    fn set_last(&mut self, stream: Stream) {
        if let Memory::Part { whole, .. } = &self.memory {
            whole.strayed.store(true, Ordering::Relaxed);
        }
        self.last = Some(stream);
    }

    fn stream<'a>(&'a self, home: &'a Stream) -> &'a Stream {
        self.last.as_ref().filter(|last| !is_over(last)).unwrap_or(home)
    }

    fn address(&self) -> Result<u64, Error> {
        match &self.memory {
            Memory::Lease(lease) => Ok(lease.address),
            Memory::Registered(registered) => Ok(registered.lock.device_address()),
            Memory::Foreign { address, .. } | Memory::Part { address, .. } => Ok(*address),
            Memory::Staged => Err(ErrorKind::Busy.error(
                "the array has no memory: adapt uploads it together with others, and that is not done or \
                 has failed; use the array that adapt returns"
                    .to_owned(),
            )),
            Memory::Freed { how, .. } => Err(Fault::Freed(*how).into()),
        }
    }

    /// Returns the host's address of host-accessible memory.
    fn host_address(&self) -> Result<u64, Error> {
        match &self.memory {
            Memory::Registered(registered) if registered.lock.device_address() != 0 => {
                Ok(registered.lock.host_address())
            }
            _ => self.address(),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // In the common case, the memory was used on one stream, and no memory advice was given.
        if let Memory::Lease(lease) = state.memory
            && state.last.is_none()
            && state.advice.is_empty()
        {
            // The program may have retired a foreign stream through another `Stream` object. `free`
            // checks that if it receives the stream.
            let home = self.home.is_foreign().then_some(&self.home);
            // A destructor cannot return the error, so the heap counts the failure. In a forked
            // child, `free` does nothing.
            let _ = self.heap.free(self.kind, lease, home, self.zero_on_free);
            return;
        }
        let forked = self.heap.is_forked();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let nothing = Memory::Foreign { address: 0, owner: None };
        let memory = std::mem::replace(&mut state.memory, nothing);
        if forked {
            // The memory, and the values that an owner captured, belong to the process that forked.
            std::mem::forget(memory);
            return;
        }
        let ending = state.ending();
        // A destructor cannot return the error, so the heap counts the failure.
        let _ = self.give_back(memory, ending);
    }
}

/// Returns `true` if a reset of the device has completed all work of a stream. The reset also
/// waited for the work of other streams on which that work depended.
fn is_over(stream: &Stream) -> bool {
    stream.context().check_alive() == Err(Gone::Reset)
}

fn is_same_stream(one: &Stream, other: &Stream) -> bool {
    one.id() == other.id() && one.context().is_same(other.context())
}

fn owner_panicked(text: String) -> Error {
    ErrorKind::Panicked.error(format!(
        "what was to free a wrapped pointer panicked: {text}; the memory behind it may not be freed"
    ))
}

/// Advice in the driver's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DriverAdvice {
    pub(super) advice: c_int,
    pub(super) place: CUdevice,
}

impl DriverAdvice {
    /// Passes the advice to the driver, for memory of `context`.
    pub(super) fn apply(self, context: &Context, address: u64, bytes: u64) -> Result<(), Error> {
        let _current = context.enter()?;
        let DriverAdvice { advice, place } = self;
        // SAFETY: the caller holds the storage's lock, or has taken the memory out of the storage,
        // so this managed range stays allocated during the call.
        let advised =
            unsafe { context.driver().cuMemAdvise(address, bytes as usize, advice, place) };
        Ok(check("cuMemAdvise", advised)?)
    }
}
