//! Sorted runs of groups. A run has keys in ascending order, and their parts (partial results).

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;
use crate::keys::Keys;
use crate::plan::Plan;

/// A run in host memory.
#[derive(Default, Debug)]
pub(crate) struct Run {
    pub(crate) keys: Keys,
    /// The partial results of the first key, then of the second key, and so on.
    pub(crate) states: Vec<u64>,
}

impl Run {
    pub(crate) fn memory(&self) -> usize {
        self.keys.memory() + size_of_val(&self.states[..])
    }

    pub(crate) fn push(&mut self, key: &[u8], state: &[u64]) {
        self.keys.push(key);
        self.states.extend_from_slice(state);
    }

    pub(crate) fn get(&self, index: usize, width: usize) -> (&[u8], &[u64]) {
        (self.keys.get(index), &self.states[index * width..][..width])
    }

    /// Merges two runs. A group that both runs have is in the result once, with its parts merged.
    pub(crate) fn merged(&self, later: &Run, plan: &Plan) -> Run {
        let (mut made, width) = (Run::default(), plan.width());
        let (mut one, mut other) = (0, 0);
        loop {
            let left = (one < self.keys.len()).then(|| self.get(one, width));
            let right = (other < later.keys.len()).then(|| later.get(other, width));
            let (key, state) = match (left, right) {
                (Some(left), Some(right)) if left.0 == right.0 => {
                    (one, other) = (one + 1, other + 1);
                    made.push(left.0, left.1);
                    let at = made.states.len() - width;
                    plan.merge(&mut made.states[at..], right.1);
                    continue;
                }
                (Some(left), right) if right.is_none_or(|right| left.0 < right.0) => {
                    one += 1;
                    left
                }
                (_, Some(right)) => {
                    other += 1;
                    right
                }
                (_, None) => return made,
            };
            made.push(key, state);
        }
    }
}

/// A sorted run of groups, in a temporary file without a name. The file is deleted when the run is
/// dropped or the process ends.
#[derive(Debug)]
pub(crate) struct SpilledRun {
    file: Arc<File>,
    pub(crate) bytes: u64,
}

impl SpilledRun {
    pub(crate) fn write(run: &Run, width: usize, folder: &Path) -> Result<SpilledRun, Error> {
        let mut bytes = 0;
        let mut write = || -> io::Result<File> {
            let mut file = BufWriter::with_capacity(1 << 20, tempfile::tempfile_in(folder)?);
            for index in 0..run.keys.len() {
                let (key, state) = run.get(index, width);
                file.write_all(&(key.len() as u64).to_le_bytes())?;
                file.write_all(key)?;
                for part in state {
                    file.write_all(&part.to_le_bytes())?;
                }
                bytes += (8 + key.len() + 8 * width) as u64;
            }
            file.into_inner().map_err(io::IntoInnerError::into_error)
        };
        match write() {
            Ok(file) => Ok(SpilledRun { file: Arc::new(file), bytes }),
            Err(error) => Err(Error::Spill { folder: folder.to_owned(), bytes, error }),
        }
    }

    /// Reads the run from its beginning.
    pub(crate) fn reader(&self) -> RunReader {
        let at = ReadAt { file: self.file.clone(), at: 0 };
        RunReader { file: BufReader::with_capacity(1 << 18, at) }
    }
}

pub(crate) struct RunReader {
    file: BufReader<ReadAt>,
}

impl RunReader {
    /// Reads the sorted run's next group into `key` and `state`. Returns `false` at the run's end.
    pub(crate) fn next(&mut self, key: &mut Vec<u8>, state: &mut [u64]) -> io::Result<bool> {
        if self.file.fill_buf()?.is_empty() {
            return Ok(false);
        }
        let mut word = [0; 8];
        self.file.read_exact(&mut word)?;
        key.resize(u64::from_le_bytes(word) as usize, 0);
        self.file.read_exact(key)?;
        for part in state {
            self.file.read_exact(&mut word)?;
            *part = u64::from_le_bytes(word);
        }
        Ok(true)
    }
}

/// A reader with its own offset, so that several readers of one file do not disturb each other.
struct ReadAt {
    file: Arc<File>,
    at: u64,
}

impl Read for ReadAt {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
