//! The memory behind arrays: shared by their handles and views, used in stream order, freed once.

use std::any::Any;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpuheap_pool::Gone;

use super::advice::Told;
use super::element::Element;
use super::registration::Registered;
use crate::array::scope_state::ScopeState;
use crate::array::target::Target;
use crate::device::{Context, Visited};
use crate::error::{Error, ErrorKind, Fault, Freed};
use crate::heap::Heap;
use crate::heap::lease::Lease;
use crate::kind::MemoryKind;
use crate::program::{self, Callback};
use crate::stream::Stream;

/// One piece of memory.
///
/// Work is enqueued with its lock held, so that a free by another thread comes wholly before or
/// wholly after it. Of several streams the last one to use it is remembered, and the next one waits
/// for it, so a free on the last one comes after them all.
///
/// Locks are taken in this order: storages, several by their addresses; then the heap's. Nothing of
/// the program's own is called with one held. In a forked child none is taken: a thread of the
/// parent may have held it.
pub(crate) struct Storage {
    heap: Heap,
    kind: MemoryKind,
    bytes: u64,
    zero_on_free: bool,
    /// The stream it was made on, of the heap's device.
    home: Stream,
    /// Where in the program it was made.
    made: &'static Location<'static>,
    /// `true` if a piece of it was used on another stream than the one all of them were made on.
    strayed: AtomicBool,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    /// The stream of last use, where that is not home. It may be of a device that reaches this one.
    last: Option<Stream>,
    /// Set by every use, and cleared at the end of the upload of its batch.
    used_since_upload: bool,
    /// How many host borrows of the memory are out.
    borrows: u32,
    /// The scope whose end frees it.
    scope: Option<Arc<ScopeState>>,
    /// What takes back the advice that was given for it.
    advice: Vec<Told>,
}

/// What a storage is made of.
pub(crate) enum Memory {
    /// The heap's.
    Lease(Lease),
    /// The program's own, page-locked.
    Registered(Registered),
    /// A piece of a block that goes back when all its pieces went.
    Part { address: u64, whole: Arc<Storage> },
    /// Not there yet: what is to be in it waits to be uploaded with others.
    Staged,
    /// Somebody else's, with what is to be done with it at the end.
    Foreign { address: u64, owner: Option<Owner> },
    /// Freed before its handles went; what is left is given back when the last host borrow ends.
    Freed { how: Freed, rest: Option<Box<Memory>> },
}

/// What is called with the address of foreign memory when it is freed, in the order of the stream.
pub(crate) type Owner = Callback<Box<dyn FnOnce(u64, &Stream) + Send>>;

/// Where the memory of a storage is.
pub(super) enum Place {
    At(u64),
    /// It will be at a multiple of [`STAGED_ALIGN`].
    Staged,
    /// It was freed, or is the parent's of a fork, and will be nowhere.
    Nowhere,
}

/// Staged arrays get memory at multiples of these bytes: the driver's own alignment, which kernels
/// with wide loads count on.
pub(crate) const STAGED_ALIGN: u64 = 256;

/// What is left to do with memory that was marked as freed.
enum Taken {
    /// To give it back.
    Memory(Memory, Ending),
    /// Nothing before the last host borrow ends.
    Borrowed,
    /// Nothing: it was freed before.
    Nothing,
}

/// What its end has to know of memory.
struct Ending {
    /// The stream of last use, where that is not home.
    last: Option<Stream>,
    /// What takes back the advice that was given for it.
    advice: Vec<Told>,
}

impl Storage {
    /// Memory of a kind, first used where `target` says.
    pub(crate) fn new(
        target: &Target,
        kind: MemoryKind,
        bytes: u64,
        memory: Memory,
        made: &'static Location<'static>,
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

    /// Where in the program it was made.
    pub(crate) fn made(&self) -> &'static Location<'static> {
        self.made
    }

    /// The stream of last use.
    pub(crate) fn stream(&self) -> Stream {
        self.peek().map_or_else(|| self.home.clone(), |state| state.stream(&self.home).clone())
    }

    /// A stream of the heap's own device for its like: the one of last use, unless another device
    /// used it last.
    pub(crate) fn own_stream(&self) -> Stream {
        let stream = self.stream();
        if stream.context().is_same(self.context()) { stream } else { self.home.clone() }
    }

    /// Returns `true` if the memory was freed while there were handles to it.
    pub(crate) fn is_freed(&self) -> bool {
        self.peek().is_some_and(|state| matches!(state.memory, Memory::Freed { .. }))
    }

    /// Its address as things are, without claiming a use of it.
    pub(crate) fn address(&self) -> Option<u64> {
        self.peek()?.address().ok()
    }

    /// The same, or why it has none. It stays the same for as long as there is one.
    pub(crate) fn require_address(&self) -> Result<u64, Error> {
        self.check_alive()?;
        self.lock().address()
    }

    /// Where it is, for what has to know whether it will be somewhere later.
    pub(super) fn place(&self) -> Place {
        let Some(state) = self.peek() else { return Place::Nowhere };
        match (&state.memory, state.address()) {
            (Memory::Staged, _) => Place::Staged,
            (_, Ok(address)) => Place::At(address),
            (_, Err(_)) => Place::Nowhere,
        }
    }

    /// The scope whose end frees it.
    pub(crate) fn scope(&self) -> Option<Arc<ScopeState>> {
        self.peek()?.scope.clone()
    }

    /// Has the end of `scope` free it.
    pub(crate) fn join(&self, scope: Option<Arc<ScopeState>>) {
        self.lock().scope = scope;
    }

    /// Notes the end of its upload. The caller marks that point of the stream afterwards.
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

    /// Gives staged memory what it is made of.
    pub(crate) fn fill(&self, memory: Memory) {
        let mut state = self.lock();
        if matches!(state.memory, Memory::Staged) {
            state.memory = memory;
            return;
        }
        // The end of a scope was quicker.
        let ending = state.ending();
        drop(state);
        let _ = self.give_back(memory, ending);
    }

    /// Its memory, for another storage to hold.
    pub(crate) fn surrender(&self) -> Memory {
        std::mem::replace(&mut self.lock().memory, Memory::Staged)
    }

    /// The block of which this is a piece, how far into it, and the stream that all work on all
    /// pieces was on, if it was on one.
    pub(crate) fn part(&self) -> Option<(Arc<Storage>, u64, &Stream)> {
        let state = self.peek()?;
        let Memory::Part { address, whole } = &state.memory else { return None };
        let strayed = whole.strayed.load(Ordering::Relaxed);
        let start = address.checked_sub(whole.address()?)?;
        (!strayed).then(|| (whole.clone(), start, &self.home))
    }

    /// Drops what was to be called at its end, uncalled.
    pub(crate) fn disown(&self) {
        let nothing = Memory::Foreign { address: 0, owner: None };
        let memory = std::mem::replace(&mut self.lock().memory, nothing);
        drop(memory);
    }

    /// Has `stream` wait for all work that the memory was given so far, and enqueues more with
    /// `work`, which gets the address and the stream: `stream`, else the one of last use.
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

    /// The same for work that reads `source` and writes here, on a stream of this storage's own
    /// device: that of last use, or home behind it; afterwards the source's stream comes after it too.
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
        // In the order of their addresses, so that two threads that copy both ways cannot wait for
        // each other.
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
        // On a device of its own: a peer that used it last may not reach the source.
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
        // The source stays with a stream of its own device, behind this copy of it.
        let ordered = their_stream.wait_for(&stream);
        if let Err(error) = ordered.or_else(|_| stream.synchronize()) {
            // Its free is to come after the copy all the same.
            theirs.set_last(stream);
            return Err(error);
        }
        Ok(done)
    }

    /// The same for work on this and `others`, some of which may be the same: on the stream of this
    /// one's last use, of its own device, which waits for what the others were used for. Their
    /// addresses are what they were.
    pub(crate) fn use_among<R>(
        &self,
        others: &[&Storage],
        work: impl FnOnce(&Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut all: Vec<&Storage> = Vec::with_capacity(others.len() + 1);
        all.push(self);
        all.extend_from_slice(others);
        // In the order of their addresses, as above, and each once.
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
        // On a device of its own, as above.
        let stream = self.last_stream(states[mine].ending_stream())?;
        states[mine].last =
            Some(stream.clone()).filter(|stream| !is_same_stream(stream, &self.home));
        for (storage, state) in all.iter().zip(&mut states) {
            storage.hand_over(state, &stream, &mut visited)?;
        }
        work(&stream)
    }

    /// The address for the host, all work done: it stays valid until [`end_borrow`](Self::end_borrow).
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
        // A destructor reports and carries on: the heap counts the failure.
        let _ = self.give_back(*rest, ending);
    }

    /// Frees it now, in the order of its last use; later uses are errors that say `how`. Whether it
    /// was there to be freed.
    pub(crate) fn free_early(&self, how: Freed) -> Result<bool, Error> {
        self.check_alive()?;
        match self.take(how) {
            Taken::Memory(memory, last) => self.give_back(memory, last).map(|()| true),
            Taken::Borrowed => Ok(true),
            Taken::Nothing => Ok(false),
        }
    }

    /// Waits for the last use and gives the memory back to the driver, past the cache: the bytes
    /// that the driver regained.
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

    /// Marks it freed, with what is then to be given back. All work on it is enqueued by then, so
    /// that happens with the lock let go: the owner of wrapped memory may use the array's handles.
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

    /// Memory whose order cannot be kept stays with the heap, accounted as live: nobody else may
    /// have it.
    fn give_back(&self, memory: Memory, ending: Ending) -> Result<(), Error> {
        match memory {
            Memory::Lease(lease) => {
                self.take_advice_back(&lease, &ending);
                let stream = match ending.last {
                    None => self.home.is_foreign().then(|| self.home.clone()),
                    last => {
                        let stream = self.last_stream(last);
                        Some(stream.inspect_err(|_| self.heap.note_failed_free(self.kind))?)
                    }
                };
                self.heap.free(self.kind, lease, stream.as_ref(), self.zero_on_free)
            }
            Memory::Registered(registered) => {
                registered.free(&self.last_stream(ending.last)?, self.zero_on_free)
            }
            Memory::Part { address, whole } => {
                for told in &ending.advice {
                    let _ = told.tell(self.context(), address, self.bytes);
                }
                // The whole is freed behind the last use of each piece. Where that cannot be
                // ordered the host waits for the piece.
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
                // What a reset took with it is not freed again.
                self.check_alive()?;
                let stream = self.last_stream(ending.last)?;
                // For an owner that calls the driver; one that does not can do without.
                let _current = self.context().enter();
                let end = move || owner.take().map_or((), |owner| owner(address, &stream));
                program::run(end).map_err(owner_panicked)
            }
            Memory::Foreign { owner: None, .. } => Ok(()),
            Memory::Freed { rest: Some(rest), .. } => self.give_back(*rest, ending),
            Memory::Freed { rest: None, .. } => Ok(()),
        }
    }

    /// Notes how advice that was given is taken back.
    pub(super) fn remember(&self, told: Told) {
        let mut state = self.lock();
        if !state.advice.contains(&told) {
            state.advice.push(told);
        }
    }

    /// Advice stays with pages, which the next tenant is to find as new. Where it cannot be taken
    /// back, that one is slower and not wrong.
    fn take_advice_back(&self, lease: &Lease, ending: &Ending) {
        for told in &ending.advice {
            let _ = told.tell(self.context(), lease.address, lease.bytes);
        }
    }

    /// Returns `true` if it is registered memory: a vector of that many `T`.
    pub(super) fn is_vector_of<T: Element>(&self, count: usize) -> bool {
        match &self.lock().memory {
            Memory::Registered(registered) => registered.is_vector_of::<T>(count),
            _ => false,
        }
    }

    /// Waits for the last use of registered memory and unlocks it: the vector.
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

    /// A stream of the heap's device that comes after every use.
    fn last_stream(&self, last: Option<Stream>) -> Result<Stream, Error> {
        match last {
            None => Ok(self.home.clone()),
            Some(last) if last.context().is_same(self.home.context()) && !last.is_retired() => {
                Ok(last)
            }
            Some(last) => {
                let ordered = self.home.wait_for(&last);
                // Where that fails the host waits, so that the memory can be freed after all.
                ordered.or_else(|_| last.synchronize())?;
                Ok(self.home.clone())
            }
        }
    }

    /// Makes `stream` the one of last use, behind the one that was. The caller drops `visited` after
    /// it unlocked all storages: a heap that ends there drops callbacks, which are code of the program.
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
        // Memory of a stream-ordered pool is opened to other devices by a call on the whole pool,
        // after which writes of a peer were seen to be lost (driver 590, NVIDIA bug 6098762).
        // Wrapped memory may be of such a pool.
        let may_be_pooled = self.heap.is_stream_ordered()
            || !matches!(memory, Memory::Lease(_) | Memory::Part { .. });
        Ok(!may_be_pooled && user.can_reach(owner, visited)?)
    }

    /// Before the lock is taken: a thread of a forked child's parent may have held it.
    fn check_alive(&self) -> Result<(), Error> {
        Ok(self.home.context().check_alive()?)
    }

    /// How things are, for what has no error to give; `None` in a forked child.
    fn peek(&self) -> Option<MutexGuard<'_, State>> {
        (!self.heap.is_forked()).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The stream of last use, where that is not home and has anything left to wait for.
    fn ending_stream(&self) -> Option<Stream> {
        self.last.clone().filter(|last| !is_over(last))
    }

    fn ending(&mut self) -> Ending {
        Ending { last: self.ending_stream(), advice: std::mem::take(&mut self.advice) }
    }

    /// The block of which it is a piece.
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
            Memory::Registered(registered) => Ok(registered.device),
            Memory::Foreign { address, .. } | Memory::Part { address, .. } => Ok(*address),
            Memory::Staged => Err(ErrorKind::Busy.error(
                "the array has no memory: adapt uploads it together with others, and that is not done or \
                 has failed; use the array that adapt returns"
                    .to_owned(),
            )),
            Memory::Freed { how, .. } => Err(Fault::Freed(*how).into()),
        }
    }

    /// Where the host sees it, for memory that it does.
    fn host_address(&self) -> Result<u64, Error> {
        match &self.memory {
            Memory::Registered(registered) if registered.device != 0 => Ok(registered.host),
            _ => self.address(),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Most arrays: used on one stream, and given no advice.
        if let Memory::Lease(lease) = state.memory
            && state.last.is_none()
            && state.advice.is_empty()
        {
            // Of a foreign stream the heap may have let go by another object for it.
            let home = self.home.is_foreign().then_some(&self.home);
            // A destructor reports and carries on: the heap counts the failure. In a forked child
            // it does nothing.
            let _ = self.heap.free(self.kind, lease, home, self.zero_on_free);
            return;
        }
        let forked = self.heap.is_forked();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let nothing = Memory::Foreign { address: 0, owner: None };
        let memory = std::mem::replace(&mut state.memory, nothing);
        if forked {
            // All of it is the parent's, what an owner captured included.
            std::mem::forget(memory);
            return;
        }
        let ending = state.ending();
        // A destructor reports and carries on: the heap counts the failure.
        let _ = self.give_back(memory, ending);
    }
}

/// Returns `true` if all work of a stream is over for good, because its device was reset: that
/// waited for it, and for what it waited for.
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
