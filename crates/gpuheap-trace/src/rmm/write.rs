//! Writer of RMM logs.

use std::io::{self, BufWriter, Write};

use crate::{Error, Op, Trace};

/// Writes a trace as RMM's CSV log, with RMM's header and spelling.
///
/// The format has no dates, no pending state and no segments. Times are whole microseconds since
/// midnight, and days without events are lost. A block's free is its [`Op::Free`]; completions and
/// segments are left out. Blocks that were live before the recording are written as allocations at
/// the log's start. If the trace has no threads, the thread is 0.
///
/// # Errors
/// Returns an error if the writer fails.
pub fn write_rmm_csv(trace: &Trace, writer: impl Write) -> Result<(), Error> {
    write(trace, BufWriter::new(writer)).map_err(|error| {
        Error::io("the log cannot be written", error, "check the disk and the path's permissions")
    })
}

fn write(trace: &Trace, mut writer: impl Write) -> io::Result<()> {
    writeln!(writer, "Thread,Time,Action,Pointer,Size,Stream")?;
    let mut sizes = vec![0; trace.allocations() as usize];
    for event in trace.events() {
        let address = |allocation: u32| trace.addresses()[allocation as usize];
        let (action, pointer, bytes) = match event.op {
            Op::Allocate { allocation, bytes } => {
                sizes[allocation as usize] = bytes;
                ("allocate", address(allocation), bytes)
            }
            Op::Free { allocation } => ("free", address(allocation), sizes[allocation as usize]),
            Op::Fail { bytes } | Op::Retry { bytes } => ("allocate failure", 0, bytes),
            Op::FreeCompleted { .. } | Op::SegmentTaken { .. } | Op::SegmentGivenBack { .. } => {
                continue;
            }
        };
        let thread = trace.threads().map_or(0, |threads| threads[event.thread as usize]);
        let stream = trace.streams()[event.stream as usize].handle;
        // Writes the pointer in the form of C's `%p`.
        let pointer = if pointer == 0 { "(nil)".to_owned() } else { format!("{pointer:#x}") };
        let us = event.time_ns / 1000;
        let (us, seconds) = (us % 1_000_000, us / 1_000_000);
        let (hours, minutes, seconds) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let time = format!("{hours:02}:{minutes:02}:{seconds:02}.{us:06}");
        writeln!(writer, "{thread},{time},{action},{pointer},{bytes},{stream:#x}")?;
    }
    writer.flush()
}
