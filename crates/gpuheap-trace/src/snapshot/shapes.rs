//! Recognises entries. An entry is a dict that describes one event of a device. The entries of a
//! recording have few different lists of keys. So a dict's keys are first compared with the
//! previous dict's keys, and seldom with those of other known lists.

use super::texts::Texts;
use super::value::{Packed, Value};

/// Keys of an entry that the reader uses.
pub(super) const KEYS: [&str; 9] = [
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "device_free",
    "pool_id",
    "segment_pool_id",
];
pub(super) const ACTION: usize = 0;
pub(super) const ADDR: usize = 1;
pub(super) const SIZE: usize = 2;
pub(super) const STREAM: usize = 3;
pub(super) const TIME: usize = 4;
pub(super) const FRAMES: usize = 5;
pub(super) const DEVICE_FREE: usize = 6;
pub(super) const POOL: usize = 7;
pub(super) const SEGMENT_POOL: usize = 8;

pub(super) type Values = [Option<Value>; KEYS.len()];

/// Shapes of the entries so far. A shape is a list of keys.
#[derive(Default)]
pub(super) struct Shapes {
    shapes: Vec<Shape>,
    last: usize,
}

struct Shape {
    keys: Vec<Packed>,
    /// Index in `keys` at which each of [`KEYS`] occurs last.
    places: [Option<u8>; KEYS.len()],
}

/// Largest number of shapes (lists of keys). Recordings have up to three. A dict with one more
/// shape is stored as an ordinary dict, not as an entry.
const MOST_SHAPES: usize = 32;
/// Largest number of keys in a shape. The entries of recordings have nine keys.
const MOST_KEYS: usize = 64;

impl Shapes {
    /// Returns the index of the shape (list of keys) that matches `items`, and the values for
    /// [`KEYS`]. `None` if a dict with these keys does not describe an event of a device.
    pub(super) fn fields(&mut self, items: &[Packed], texts: &Texts) -> Option<(u8, Values)> {
        let pairs = items.as_chunks::<2>().0;
        let is_last = self.shapes.get(self.last).is_some_and(|shape| shape.has_keys(pairs));
        if !is_last {
            self.last = match self.shapes.iter().position(|shape| shape.has_keys(pairs)) {
                Some(known) => known,
                None => self.add(pairs, texts)?,
            };
        }
        let value = |place: Option<u8>| Some(pairs[usize::from(place?)][1].value());
        Some((self.last as u8, self.shapes[self.last].places.map(value)))
    }

    pub(super) fn keys(&self, shape: u8) -> &[Packed] {
        self.shapes.get(usize::from(shape)).map_or(&[], |shape| &shape.keys)
    }

    fn add(&mut self, pairs: &[[Packed; 2]], texts: &Texts) -> Option<usize> {
        if self.shapes.len() == MOST_SHAPES || pairs.len() > MOST_KEYS {
            return None;
        }
        let mut places = [None; KEYS.len()];
        for (place, [key, _]) in pairs.iter().enumerate() {
            let Value::Text(key) = key.value() else { return None };
            let known = KEYS.iter().position(|known| known.as_bytes() == texts.get(key));
            if let Some(known) = known {
                places[known] = Some(place as u8);
            }
        }
        // Only dicts of entries have this key.
        places[0]?;
        self.shapes.push(Shape { keys: pairs.iter().map(|&[key, _]| key).collect(), places });
        Some(self.shapes.len() - 1)
    }
}

impl Shape {
    fn has_keys(&self, pairs: &[[Packed; 2]]) -> bool {
        self.keys.len() == pairs.len()
            && self.keys.iter().zip(pairs).all(|(known, [key, _])| known == key)
    }
}
