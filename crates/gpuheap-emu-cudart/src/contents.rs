//! Records facts about the content that PyTorch's device memory would have if kernels ran.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Fact about the content of device memory.
#[derive(Clone, Copy)]
pub(crate) enum Content {
    /// Each group of this many consecutive elements has exactly one element that is not 0.
    OneOf(i64),
    /// No element is larger than this number.
    AtMost(i64),
    /// All `count` elements sum to `sum`, and none is larger than `most`.
    SumOf { sum: i64, count: i64, most: i64 },
}

/// Known facts about ranges of device memory. The key is the range's start. The value has its end.
static CONTENTS: Mutex<BTreeMap<u64, (u64, Content)>> = Mutex::new(BTreeMap::new());

/// Removes the facts about memory that PyTorch hands out again or changes.
pub(crate) fn forget(block: u64, bytes: u64) {
    let Ok(mut contents) = CONTENTS.lock() else { return };
    let end = block.saturating_add(bytes);
    while let Some((&start, &(last, _))) = contents.range(..end).next_back()
        && last > block
    {
        contents.remove(&start);
    }
}

/// Records a fact about the content of a range.
pub(crate) fn insert(address: u64, bytes: u64, content: Content) {
    if let Ok(mut contents) = CONTENTS.lock() {
        contents.insert(address, (address.saturating_add(bytes), content));
    }
}

/// Returns the fact about the memory that contains `address`; `None` if no fact is known.
pub(crate) fn at(address: u64) -> Option<Content> {
    let contents = CONTENTS.lock().ok()?;
    let (_, &(end, content)) = contents.range(..=address).next_back()?;
    (address < end).then_some(content)
}
