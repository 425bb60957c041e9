//! Handles: numbers that identify objects. A handle becomes stale when its object is removed.

/// Kind of object that a handle identifies. Objects of different kinds never have equal handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandleKind {
    Context = 1,
    Stream = 2,
    Event = 3,
    Pool = 4,
    Physical = 5,
    Module = 6,
    Function = 7,
    Graph = 8,
    Executable = 9,
    UserObject = 10,
}

/// Table of objects, keyed by handle. After an object is removed, a new object reuses its index
/// under another handle. The generation in the upper half of the new handle differs, so the stale
/// handle is detected.
pub(crate) struct Handles<T> {
    kind: HandleKind,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

const KIND_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = 32;

impl<T> Handles<T> {
    pub(crate) fn new(kind: HandleKind) -> Handles<T> {
        Handles { kind, slots: Vec::new(), free: Vec::new() }
    }

    /// Inserts an object and returns its handle. The handle is greater than zero and the reserved
    /// stream handles.
    pub(crate) fn insert(&mut self, value: T) -> usize {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, value: None });
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        self.handle(index)
    }

    /// Returns the handle of an index that is in use.
    pub(crate) fn handle(&self, index: u32) -> usize {
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        ((generation as usize) << GENERATION_SHIFT)
            | ((index as usize + 1) << KIND_BITS)
            | self.kind as usize
    }

    /// Returns the index of a handle; `None` if the handle is stale.
    pub(crate) fn index(&self, handle: usize) -> Option<u32> {
        if handle & ((1 << KIND_BITS) - 1) != self.kind as usize {
            return None;
        }
        let index = ((handle & 0xffff_ffff) >> KIND_BITS).checked_sub(1)?;
        let slot = self.slots.get(index)?;
        (slot.value.is_some() && slot.generation as usize == handle >> GENERATION_SHIFT)
            .then_some(index as u32)
    }

    pub(crate) fn get(&self, handle: usize) -> Option<&T> {
        self.at(self.index(handle)?)
    }

    pub(crate) fn get_mut(&mut self, handle: usize) -> Option<&mut T> {
        let index = self.index(handle)?;
        self.at_mut(index)
    }

    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.value.as_ref()
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    pub(crate) fn remove_at(&mut self, index: u32) -> Option<T> {
        let value = self.slots.get_mut(index as usize)?.value.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn remove(&mut self, handle: usize) -> Option<T> {
        let index = self.index(handle)?;
        self.remove_at(index)
    }

    /// Removes all objects that `is_gone` selects, and returns their indices.
    pub(crate) fn remove_all(&mut self, is_gone: impl Fn(&T) -> bool) -> Vec<u32> {
        let gone: Vec<u32> =
            self.iter().filter(|(_, value)| is_gone(value)).map(|(index, _)| index).collect();
        for index in &gone {
            self.remove_at(*index);
        }
        gone
    }

    /// Removes an object and reserves its handle for [`revive`](Handles::revive).
    pub(crate) fn suspend(&mut self, handle: usize) -> Option<T> {
        let index = self.index(handle)?;
        self.slots.get_mut(index as usize)?.value.take()
    }

    /// Inserts an object under a handle that [`suspend`](Handles::suspend) reserved.
    pub(crate) fn revive(&mut self, handle: usize, value: T) {
        if let Some(slot) = self.slots.get_mut(((handle & 0xffff_ffff) >> KIND_BITS) - 1) {
            slot.value = Some(value);
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// Returns all objects with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((index as u32, slot.value.as_ref()?)))
    }
}
