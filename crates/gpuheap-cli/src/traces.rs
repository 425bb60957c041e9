//! Reads files of recorded allocations for the commands.

use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};

use gpuheap_replay::replay::Progress as _;
use gpuheap_trace::{ReadOptions, Trace};

use crate::exit::Failure;
use crate::output;
use crate::progress::{Counted, Progress};

/// Name that stands for standard input in place of a trace's path.
const STANDARD_INPUT: &str = "-";

/// Reads all files, so that a bad file is reported before any work. Prints each file's warnings to
/// stderr.
pub(crate) fn read(paths: &[PathBuf], options: &ReadOptions) -> Result<Vec<Trace>, Failure> {
    let mut traces = Vec::new();
    let mut failures: Option<Failure> = None;
    let mut is_read = false;
    for path in paths {
        let result = if path == Path::new(STANDARD_INPUT) {
            if std::mem::replace(&mut is_read, true) {
                return Err(Failure::wrong_use("- was given more than once; give it once"));
            }
            if stdin().is_terminal() {
                return Err(Failure::wrong_use(
                    "- reads a trace from standard input, which is a terminal; pipe a file into it",
                ));
            }
            gpuheap_trace::read_from("standard input", stdin().lock(), options)
        } else {
            read_file(path, options)
        };
        match result {
            Ok(read) => traces.extend(read),
            Err(error) => {
                let failure = Failure::wrong_use(error);
                failures = Some(match failures {
                    Some(others) => others.and(failure),
                    None => failure,
                });
            }
        }
    }
    match failures {
        Some(failures) => Err(failures),
        None => {
            for trace in &traces {
                for warning in trace.warnings() {
                    output::note(&format!("{}: {warning}", trace.name()));
                }
            }
            Ok(traces)
        }
    }
}

fn read_file(path: &Path, options: &ReadOptions) -> Result<Vec<Trace>, gpuheap_trace::Error> {
    let file = gpuheap_trace::open(path)?;
    let progress = Progress::of_bytes(file.metadata().map_or(0, |about| about.len()));
    let name = path.display().to_string();
    progress.now(&format!("reading {name}"));
    gpuheap_trace::read_from(&name, Counted { reader: file, progress: &progress }, options)
}
