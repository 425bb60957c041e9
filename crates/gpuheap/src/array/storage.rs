//! The memory behind arrays: shared by their handles and views, used in stream order, freed once.

use std::any::Any;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::element::Element;
use super::registered::Registered;
use super::unified::Told;
use crate::device::Context;
use crate::error::{Error, ErrorKind};
use crate::heap::Heap;
use crate::heap::store::Lease;
use crate::kind::MemoryKind;
use crate::stream::Stream;

/// One piece of memory.
///
/// Work is enqueued with its lock held, so that a free by another thread comes wholly before or
/// wholly after it. Of several streams the last one to use it is remembered, and the next one waits
/// for it, so a free on the last one comes after them all.
pub(crate) struct Storage {
    heap: Heap,
    kind: MemoryKind,
    bytes: u64,
    zero_on_free: bool,
    /// The stream it was made on, of the heap's device.
    home: Stream,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    /// The stream of last use, where that is not home. It may be of a device that reaches this one.
    last: Option<Stream>,
    /// How many host borrows of the memory are out.
    borrows: u32,
    /// What takes back the advice that was given for it.
    advice: Vec<Told>,
}

/// What a storage is made of.
pub(crate) enum Memory {
    /// The heap's.
    Lease(Lease),
    /// The program's own, page-locked.
    Registered(Registered),
    /// Somebody else's, with what is to be done with it at the end.
    Foreign { address: u64, owner: Option<Owner> },
    /// Freed before its handles went; what is left is given back when the last host borrow ends.
    Freed { how: Freed, rest: Option<Box<Memory>> },
}

/// What is called with the address of foreign memory when it is freed, in the order of the stream.
pub(crate) type Owner = Box<dyn FnOnce(u64, &Stream) + Send>;

/// How an array's memory came to be freed while there were handles to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// By `free_early` at this place.
    Early(&'static Location<'static>),
    /// At the end of the scope that began at this place.
    Scope(&'static Location<'static>),
}

impl Storage {
    pub(crate) fn new(
        heap: Heap,
        kind: MemoryKind,
        bytes: u64,
        memory: Memory,
        home: Stream,
        zero_on_free: bool,
    ) -> Storage {
        let state = Mutex::new(State { memory, last: None, borrows: 0, advice: Vec::new() });
        Storage { heap, kind, bytes, zero_on_free, home, state }
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

    /// The stream of last use.
    pub(crate) fn stream(&self) -> Stream {
        self.lock().stream(&self.home).clone()
    }

    /// Whether the memory is still there.
    pub(crate) fn is_freed(&self) -> bool {
        matches!(self.lock().memory, Memory::Freed { .. })
    }

    /// Its address as things are, without claiming a use of it.
    pub(crate) fn address(&self) -> Option<u64> {
        self.lock().address().ok()
    }

    /// Has `stream` wait for all work that the memory was given so far, and enqueues more with
    /// `work`, which gets the address and the stream: `stream`, else the one of last use.
    pub(crate) fn use_on<R>(
        &self,
        stream: Option<&Stream>,
        work: impl FnOnce(u64, &Stream) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.check_alive()?;
        let mut state = self.lock();
        let address = state.address()?;
        let stream = match stream {
            Some(stream) => {
                self.hand_over(&mut state, stream)?;
                stream
            }
            None => state.stream(&self.home),
        };
        work(address, stream)
    }

    /// The same for work that reads `source` and writes here, on the stream of this storage's last
    /// use; afterwards the source's stream comes after it too.
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
        let (mine, mut theirs);
        if (self as *const Storage) < (source as *const Storage) {
            mine = self.lock();
            theirs = source.lock();
        } else {
            theirs = source.lock();
            mine = self.lock();
        }
        let (to, from) = (mine.address()?, theirs.address()?);
        let stream = mine.stream(&self.home).clone();
        let their_stream = theirs.stream(&source.home).clone();
        let crosses = their_stream.id() != stream.id();
        if crosses {
            stream.wait(&their_stream.record()?)?;
        }
        let done = work(to, from, &stream)?;
        if !crosses {
            return Ok(done);
        }
        if source.context().is_same(stream.context()) {
            theirs.last = Some(stream);
        } else {
            // The source stays with a stream that may free it.
            their_stream.wait(&stream.record()?)?;
        }
        Ok(done)
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
        let mut state = self.lock();
        state.borrows = state.borrows.saturating_sub(1);
        self.heap.end_host_use(self.kind);
        if state.borrows == 0
            && let Memory::Freed { rest, .. } = &mut state.memory
            && let Some(rest) = rest.take()
        {
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.give_back(*rest, &state);
        }
    }

    /// Frees it now, in the order of its last use; later uses are errors that say `how`. Whether it
    /// was there to be freed.
    pub(crate) fn free_early(&self, how: Freed) -> Result<bool, Error> {
        self.check_alive()?;
        let mut state = self.lock();
        if matches!(state.memory, Memory::Freed { .. }) {
            return Ok(false);
        }
        let freed = Memory::Freed { how, rest: None };
        let memory = std::mem::replace(&mut state.memory, freed);
        if state.borrows > 0 {
            state.memory = Memory::Freed { how, rest: Some(Box::new(memory)) };
            return Ok(true);
        }
        self.give_back(memory, &state).map(|()| true)
    }

    /// Waits for the last use and gives the memory back to the driver, past the cache: the bytes
    /// that the driver regained.
    pub(crate) fn release(&self, how: Freed) -> Result<u64, Error> {
        self.check_alive()?;
        let mut state = self.lock();
        if state.borrows > 0 {
            drop(state);
            return self.free_early(how).map(|_| 0);
        }
        let freed = Memory::Freed { how, rest: None };
        match std::mem::replace(&mut state.memory, freed) {
            Memory::Lease(lease) => {
                self.take_advice_back(&lease, &state);
                let stream = self.last_stream(&state)?;
                self.heap.release(self.kind, lease, &stream, self.zero_on_free)
            }
            other => self.give_back(other, &state).map(|()| 0),
        }
    }

    fn give_back(&self, memory: Memory, state: &State) -> Result<(), Error> {
        match memory {
            Memory::Lease(lease) => {
                self.take_advice_back(&lease, state);
                let stream = match &state.last {
                    None => None,
                    Some(_) => Some(self.last_stream(state)?),
                };
                self.heap.free(self.kind, lease, stream.as_ref(), self.zero_on_free)
            }
            Memory::Registered(registered) => {
                registered.free(&self.last_stream(state)?, self.zero_on_free)
            }
            Memory::Foreign { address, owner: Some(owner) } => {
                let stream = self.last_stream(state)?;
                let end = std::panic::AssertUnwindSafe(|| owner(address, &stream));
                std::panic::catch_unwind(end).map_err(|panic| owner_panicked(&*panic))
            }
            Memory::Foreign { owner: None, .. } => Ok(()),
            Memory::Freed { rest: Some(rest), .. } => self.give_back(*rest, state),
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
    fn take_advice_back(&self, lease: &Lease, state: &State) {
        for told in &state.advice {
            let _ = told.tell(self.context(), lease.address, lease.bytes);
        }
    }

    /// Whether it is registered memory: a vector of that many `T`.
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
        let last = self.last_stream(&state)?;
        match std::mem::replace(&mut state.memory, Memory::Freed { how, rest: None }) {
            Memory::Registered(registered) => registered.unlock(&last),
            other => {
                state.memory = other;
                Err(ErrorKind::Refused("the array is not registered memory".to_owned()).into())
            }
        }
    }

    /// A stream of the heap's device that comes after every use.
    fn last_stream(&self, state: &State) -> Result<Stream, Error> {
        match &state.last {
            None => Ok(self.home.clone()),
            Some(last) if last.context().is_same(self.home.context()) => Ok(last.clone()),
            Some(last) => {
                self.home.wait(&last.record()?)?;
                Ok(self.home.clone())
            }
        }
    }

    /// Makes `stream` the one of last use, behind the one that was.
    fn hand_over(&self, state: &mut State, stream: &Stream) -> Result<(), Error> {
        let last = state.stream(&self.home);
        if last.id() == stream.id() && last.context().is_same(stream.context()) {
            return Ok(());
        }
        let (user, owner) = (stream.context(), self.home.context());
        if !user.is_same(owner) && !self.can_be_reached_by(user)? {
            return Err(ErrorKind::Refused(format!(
                "the array is on {owner} and is used on {user}, which cannot reach its memory (no \
                 peer access); copy it there with copy_to, or allocate it as unified memory"
            ))
            .into());
        }
        stream.wait(&last.record()?)?;
        state.last = Some(stream.clone());
        Ok(())
    }

    fn can_be_reached_by(&self, user: &Context) -> Result<bool, Error> {
        let owner = self.home.context();
        if self.kind.is_host_accessible() {
            return Ok(user.shares_driver(owner));
        }
        // Memory of a stream-ordered pool is opened to other devices by a call on the whole pool,
        // after which writes of a peer were seen to be lost (driver 590, NVIDIA bug 6098762).
        Ok(!self.heap.is_stream_ordered() && user.can_reach(owner)?)
    }

    /// Before the lock is taken: a thread of a forked child's parent may have held it.
    fn check_alive(&self) -> Result<(), Error> {
        Ok(self.home.context().check_alive()?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stream<'a>(&'a self, home: &'a Stream) -> &'a Stream {
        self.last.as_ref().unwrap_or(home)
    }

    fn address(&self) -> Result<u64, Error> {
        match &self.memory {
            Memory::Lease(lease) => Ok(lease.address),
            Memory::Registered(registered) => Ok(registered.device),
            Memory::Foreign { address, .. } => Ok(*address),
            Memory::Freed { how, .. } => Err(ErrorKind::Freed(*how).into()),
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
        if let Memory::Lease(lease) = state.memory
            && state.last.is_none()
            && state.advice.is_empty()
        {
            // A destructor reports and carries on: the heap counts the failure.
            let _ = self.heap.free(self.kind, lease, None, self.zero_on_free);
            return;
        }
        let empty = Memory::Foreign { address: 0, owner: None };
        let memory = std::mem::replace(&mut state.memory, empty);
        let state = State {
            memory: Memory::Foreign { address: 0, owner: None },
            last: state.last.take(),
            borrows: 0,
            advice: std::mem::take(&mut state.advice),
        };
        let _ = self.give_back(memory, &state);
    }
}

fn owner_panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    ErrorKind::Refused(format!(
        "what was to free a wrapped pointer panicked: {}; the memory behind it may not be freed",
        text.unwrap_or("with no text")
    ))
    .into()
}
