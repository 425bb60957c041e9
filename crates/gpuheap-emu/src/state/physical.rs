//! Content of device memory. A page takes host memory only once it is touched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Unit in which host memory backs device memory, in bytes.
pub(crate) const PAGE: u64 = 64 << 10;

/// Value of each byte that was never written. Programs that read such bytes get absurd values. If
/// kernels are not run, the value is 0 instead.
pub(crate) const POISON: u8 = 0xcb;

/// Sparse device memory, keyed by physical address. Untouched pages and pages with one repeated
/// word take no host memory. For plain memory, the physical address equals the virtual address.
pub(crate) struct Pages {
    /// Value of a byte that was never written.
    fresh: u8,
    /// Pages with content, keyed by first address.
    pages: BTreeMap<u64, Page>,
    /// Runs of whole pages with one repeated word, keyed by first address. Values are end and word.
    fills: BTreeMap<u64, (u64, Word)>,
}

/// A repeated word: the byte at address `a` is `word[a % 4]`.
type Word = [u8; 4];

struct Page {
    bytes: Box<[u8]>,
    /// A bit for each byte of the page: 1 if the byte was written.
    written: Box<[u64]>,
}

/// Content of a run of bytes.
enum Run {
    /// Written bytes of a page.
    Page,
    Fill(Word),
    Unwritten,
}

impl Default for Pages {
    fn default() -> Pages {
        Pages::new(POISON)
    }
}

impl Pages {
    /// Creates memory in which no byte was ever written and each byte reads as `fresh`.
    pub(crate) fn new(fresh: u8) -> Pages {
        Pages { fresh, pages: BTreeMap::new(), fills: BTreeMap::new() }
    }

    /// Returns whether no byte was ever written.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.fills.is_empty()
    }

    pub(crate) fn write(&mut self, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let offset = at % PAGE;
            let (now, rest) = data.split_at(data.len().min((PAGE - offset) as usize));
            let page = self.page_mut(at - offset);
            page.bytes[offset as usize..][..now.len()].copy_from_slice(now);
            page.mark(offset, offset + now.len() as u64, true);
            at += now.len() as u64;
            data = rest;
        }
    }

    pub(crate) fn read(&self, mut at: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let (run, length) = self.run(at, out.len() as u64);
            let (now, rest) = std::mem::take(&mut out).split_at_mut(length as usize);
            match run {
                Run::Page => {
                    let offset = (at % PAGE) as usize;
                    if let Some(page) = self.pages.get(&(at - at % PAGE)) {
                        now.copy_from_slice(&page.bytes[offset..][..now.len()]);
                    }
                }
                Run::Fill(word) => fill_bytes(now, at, word),
                Run::Unwritten => now.fill(self.fresh),
            }
            at += length;
            out = rest;
        }
    }

    /// Returns whether each byte of a range was written.
    pub(crate) fn is_written(&self, at: u64, length: u64) -> bool {
        self.next_unwritten(at, at + length).is_none()
    }

    /// Returns the first run of bytes in a range that were never written, as address and end.
    fn next_unwritten(&self, mut at: u64, end: u64) -> Option<(u64, u64)> {
        while at < end {
            let (run, length) = self.run(at, end - at);
            if matches!(run, Run::Unwritten) {
                return Some((at, at + length));
            }
            at += length;
        }
        None
    }

    /// Fills bytes with a repeated word. The word's first byte is written at `at`.
    pub(crate) fn fill(&mut self, at: u64, length: u64, pattern: [u8; 4]) {
        let word = std::array::from_fn(|i| pattern[(i as u64).wrapping_sub(at) as usize % 4]);
        self.set(at, length, Some(word));
    }

    /// Marks bytes as never written.
    pub(crate) fn forget(&mut self, at: u64, length: u64) {
        if !self.is_empty() {
            self.set(at, length, None);
        }
    }

    /// Copies bytes from one range to another. The ranges may overlap.
    pub(crate) fn copy(&mut self, mut target: u64, mut source: u64, mut length: u64) {
        if target < source + length && source < target + length {
            let mut buffer = bytes_of(0, length as usize);
            self.read(source, &mut buffer);
            let (mut unwritten, mut at) = (Vec::new(), source);
            while let Some((from, to)) = self.next_unwritten(at, source + length) {
                unwritten.push((from - source, to - from));
                at = to;
            }
            self.write(target, &buffer);
            for (offset, bytes) in unwritten {
                self.forget(target + offset, bytes);
            }
            return;
        }
        let mut buffer = Vec::new();
        while length != 0 {
            let (run, now) = self.run(source, length);
            match run {
                Run::Page => {
                    buffer.resize(now as usize, 0);
                    self.read(source, &mut buffer);
                    self.write(target, &buffer);
                }
                Run::Fill(word) => {
                    let pattern = std::array::from_fn(|i| word[((source + i as u64) % 4) as usize]);
                    self.fill(target, now, pattern);
                }
                Run::Unwritten => self.forget(target, now),
            }
            target += now;
            source += now;
            length -= now;
        }
    }

    /// Returns the content of the byte at `at`. Also returns the number of bytes, from this byte
    /// on, that have the same kind of content.
    fn run(&self, at: u64, length: u64) -> (Run, u64) {
        let page = at - at % PAGE;
        if let Some(found) = self.pages.get(&page) {
            let (is_written, bytes) = found.run(at - page);
            let run = if is_written { Run::Page } else { Run::Unwritten };
            return (run, length.min(bytes));
        }
        let next_page = self.pages.range(page..).next().map_or(u64::MAX, |(&next, _)| next);
        if let Some((_, &(end, word))) = self.fills.range(..=at).next_back()
            && at < end
        {
            return (Run::Fill(word), length.min(end.min(next_page) - at));
        }
        let next_fill = self.fills.range(at..).next().map_or(u64::MAX, |(&next, _)| next);
        (Run::Unwritten, length.min(next_fill.min(next_page) - at))
    }

    /// Sets bytes to a repeated word; `None` marks them as never written. Whole pages become an
    /// entry of `fills`, or no entry for `None`. The bytes of partial pages are set one by one.
    fn set(&mut self, at: u64, length: u64, word: Option<Word>) {
        let end = at + length;
        let (first, last) = (at.next_multiple_of(PAGE), end - end % PAGE);
        if first >= last {
            // The range is inside one page, or crosses one page border.
            let border = first.clamp(at, end);
            self.set_bytes(at, border, word);
            self.set_bytes(border, end, word);
            return;
        }
        self.set_bytes(at, first, word);
        self.set_bytes(last, end, word);
        self.cut_fills(first, last);
        let whole: Vec<u64> = self.pages.range(first..last).map(|(&page, _)| page).collect();
        for page in whole {
            self.pages.remove(&page);
        }
        if let Some(word) = word {
            self.insert_fill(first, last, word);
        }
    }

    /// Sets bytes within one page.
    fn set_bytes(&mut self, from: u64, to: u64, word: Option<Word>) {
        if from == to {
            return;
        }
        let page = from - from % PAGE;
        let is_unwritten = |(run, bytes)| matches!(run, Run::Unwritten) && bytes == to - from;
        if word.is_none() && is_unwritten(self.run(from, to - from)) {
            return;
        }
        let content = self.page_mut(page);
        content.mark(from - page, to - page, word.is_some());
        if let Some(word) = word {
            let bytes = &mut content.bytes[(from - page) as usize..(to - page) as usize];
            fill_bytes(bytes, from, word);
        }
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        let filled = self.fills.range(..=page).next_back().filter(|(_, (end, _))| page < *end);
        let word = filled.map(|(_, &(_, word))| word);
        match self.pages.entry(page) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => {
                let mut bytes = bytes_of(0, PAGE as usize).into_boxed_slice();
                if let Some(word) = word {
                    fill_bytes(&mut bytes, page, word);
                }
                let bits = if word.is_some() { u64::MAX } else { 0 };
                let written = vec![bits; (PAGE / 64) as usize].into_boxed_slice();
                place.insert(Page { bytes, written })
            }
        }
    }

    /// Inserts a run of whole pages, and joins it with neighbouring runs of the same word.
    fn insert_fill(&mut self, mut first: u64, mut last: u64, word: Word) {
        if let Some((&before, &(end, other))) = self.fills.range(..first).next_back()
            && (end, other) == (first, word)
        {
            self.fills.remove(&before);
            first = before;
        }
        if let Some(&(end, other)) = self.fills.get(&last)
            && other == word
        {
            self.fills.remove(&last);
            last = end;
        }
        self.fills.insert(first, (last, word));
    }

    /// Removes whole pages from the runs.
    fn cut_fills(&mut self, first: u64, last: u64) {
        let cut: Vec<_> = self
            .fills
            .range(..last)
            .rev()
            .take_while(|(_, (end, _))| *end > first)
            .map(|(&start, &(end, word))| (start, end, word))
            .collect();
        for (start, end, word) in cut {
            self.fills.remove(&start);
            if start < first {
                self.fills.insert(start, (first, word));
            }
            if end > last {
                self.fills.insert(last, (end, word));
            }
        }
    }
}

impl Page {
    /// Marks the bytes from an offset to another as written or not written.
    fn mark(&mut self, from: u64, to: u64, is_written: bool) {
        let mut at = from;
        while at < to {
            let end = to.min(at - at % 64 + 64);
            let bits = (u64::MAX >> (64 - (end - at))) << (at % 64);
            let word = &mut self.written[(at / 64) as usize];
            *word = if is_written { *word | bits } else { *word & !bits };
            at = end;
        }
    }

    /// Returns whether the byte at an offset was written. Also returns the number of bytes, from
    /// this byte on, that have the same state.
    fn run(&self, offset: u64) -> (bool, u64) {
        let word = |at: u64| self.written[(at / 64) as usize];
        let is_written = word(offset) >> (offset % 64) & 1 == 1;
        let mut at = offset;
        while at < PAGE {
            let same = if is_written { word(at) } else { !word(at) };
            let equal = u64::from((same >> (at % 64)).trailing_ones());
            at += equal;
            if equal == 0 || !at.is_multiple_of(64) {
                break;
            }
        }
        (is_written, at - offset)
    }
}

/// Returns `length` equal bytes. If the host lacks memory, unwinds with the error, so that the
/// caller of the emulated driver can report it. An abort would end the program.
fn bytes_of(byte: u8, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = bytes.try_reserve_exact(length) {
        std::panic::resume_unwind(Box::new(error));
    }
    bytes.resize(length, byte);
    bytes
}

fn fill_bytes(bytes: &mut [u8], at: u64, word: Word) {
    if word == [word[0]; 4] {
        bytes.fill(word[0]);
        return;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = word[((at + i as u64) % 4) as usize];
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Size of the tested memory, in bytes: room for whole pages between two partial pages.
    const BYTES: u64 = 5 * PAGE;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8),
        Fill(u64, u64, [u8; 4]),
        Forget(u64, u64),
        Copy(u64, u64, u64),
    }

    fn range() -> impl Strategy<Value = (u64, u64)> {
        let place = || prop_oneof![0..=BYTES, (0..=5_u64).prop_map(|page| page * PAGE)];
        (place(), place()).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b)))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (range(), any::<u8>()).prop_map(|((at, length), value)| Step::Write(at, length, value)),
            (range(), any::<[u8; 4]>())
                .prop_map(|((at, length), word)| Step::Fill(at, length, word)),
            range().prop_map(|(at, length)| Step::Forget(at, length)),
            (range(), 0..=BYTES).prop_map(|((from, length), to)| {
                Step::Copy(to.min(BYTES - length), from, length)
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn pages_match_plain_bytes(steps in prop::collection::vec(step(), 1..20)) {
            let mut pages = Pages::default();
            let mut model = vec![POISON; BYTES as usize];
            let mut written = vec![false; BYTES as usize];
            for step in steps {
                match step {
                    Step::Write(at, length, value) => {
                        let data: Vec<u8> = (0..length).map(|i| value.wrapping_add(i as u8)).collect();
                        pages.write(at, &data);
                        model[at as usize..][..length as usize].copy_from_slice(&data);
                        written[at as usize..][..length as usize].fill(true);
                    }
                    Step::Fill(at, length, word) => {
                        pages.fill(at, length, word);
                        let bytes = &mut model[at as usize..][..length as usize];
                        bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = word[i % 4]);
                        written[at as usize..][..length as usize].fill(true);
                    }
                    Step::Forget(at, length) => {
                        pages.forget(at, length);
                        model[at as usize..][..length as usize].fill(POISON);
                        written[at as usize..][..length as usize].fill(false);
                    }
                    Step::Copy(to, from, length) => {
                        pages.copy(to, from, length);
                        model.copy_within(from as usize..(from + length) as usize, to as usize);
                        written.copy_within(from as usize..(from + length) as usize, to as usize);
                    }
                }
                let mut found = vec![0; BYTES as usize];
                pages.read(0, &mut found);
                prop_assert!(found == model);
                let mut at = 0;
                while let Some((from, to)) = pages.next_unwritten(at, BYTES) {
                    prop_assert!(written[at as usize..from as usize].iter().all(|&is| is));
                    prop_assert!(!written[from as usize..to as usize].iter().any(|&is| is));
                    at = to;
                }
                prop_assert!(written[at as usize..].iter().all(|&is| is));
            }
            pages.forget(0, BYTES);
            prop_assert!(pages.is_empty(), "nothing is kept of what was forgotten");
        }
    }
}
