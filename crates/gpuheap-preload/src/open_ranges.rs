//! Tracks the NVTX ranges that the program has open. A range is recorded once a memory event occurs
//! inside. A program may name each of its operations, and most of them have no memory event.

use std::collections::BTreeMap;
use std::mem;

use gpuheap_capture::{OPEN_RANGES, ProcessCapture, Record, Time};

/// Open ranges by number, from 1. In the capture (the recorded file), ranges have other numbers.
#[derive(Default)]
pub(crate) struct OpenRanges {
    open: BTreeMap<u32, OpenRange>,
    last: u32,
    /// Number of the newest range when the open ranges were last written to the capture.
    recorded: u32,
    /// Number of ranges that were not opened because too many were open. `recorded_lost` is the
    /// part that is already recorded.
    lost: u64,
    recorded_lost: u64,
}

struct OpenRange {
    start: Time,
    /// Number of the thread whose calls are in the range; 0 for the calls of all threads.
    thread: u32,
    /// Name, until the range is recorded.
    name: String,
    /// Number of the range in the capture; 0 until the range is recorded.
    number: u32,
}

impl OpenRanges {
    /// Opens a range, and returns its number. Returns 0 if too many ranges are open.
    pub(crate) fn start(&mut self, start: Time, thread: u32, name: String) -> u32 {
        if self.open.len() == OPEN_RANGES || self.last == u32::MAX {
            self.lost += 1;
            return 0;
        }
        self.last += 1;
        self.open.insert(self.last, OpenRange { start, thread, name, number: 0 });
        self.last
    }

    /// Writes the open ranges that the capture does not have yet. `thread` returns a thread's
    /// number in the capture. If the thread is missing there, it writes the thread first.
    pub(crate) fn write(
        &mut self,
        capture: &mut ProcessCapture,
        mut thread: impl FnMut(&mut ProcessCapture, u32, Time) -> u32,
    ) {
        // Records the number of lost ranges only once it has doubled, so that records are few.
        if self.lost >= 2 * self.recorded_lost {
            self.write_lost(capture);
        }
        if self.recorded == self.last {
            return;
        }
        for (_, range) in self.open.range_mut(self.recorded + 1..) {
            let OpenRange { start, thread: of, name, number } = range;
            let of = if *of == 0 { 0 } else { thread(capture, *of, *start) };
            *number = capture.range(*start, of, &mem::take(name));
        }
        self.recorded = self.last;
    }

    /// Records how many more NVTX ranges were lost, because too many were open.
    pub(crate) fn write_lost(&mut self, capture: &mut ProcessCapture) {
        let count = self.lost - self.recorded_lost;
        if count > 0 {
            capture.write(&Record::LostRanges { count });
            self.recorded_lost = self.lost;
        }
    }

    pub(crate) fn end(&mut self, range: u32, time: Time, capture: Option<&mut ProcessCapture>) {
        if let Some(OpenRange { number: range @ 1.., .. }) = self.open.remove(&range)
            && let Some(capture) = capture
        {
            capture.write(&Record::RangeEnd { time, range });
        }
    }

    pub(crate) fn end_thread(
        &mut self,
        thread: u32,
        time: Time,
        mut capture: Option<&mut ProcessCapture>,
    ) {
        let of_thread = self.open.iter().filter(|(_, range)| range.thread == thread);
        let numbers: Vec<_> = of_thread.map(|(number, _)| *number).collect();
        for number in numbers {
            self.end(number, time, capture.as_deref_mut());
        }
    }
}
