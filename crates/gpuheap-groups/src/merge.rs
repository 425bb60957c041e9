//! Merges the groups of batches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, room};
use crate::keys::Keys;
use crate::plan::Plan;
use crate::run::{Run, RunReader, SpilledRun};

/// Merges the groups of batches. Each batch is a sorted run. When a batch is added, runs of similar
/// size are merged. Above the limit of host memory, runs are written to temporary files in a
/// folder. [`Merged::groups`] merges these files.
#[derive(Debug)]
pub struct Merger {
    plan: Plan,
    runs: Vec<Run>,
    spilled: Vec<SpilledRun>,
    limit: usize,
    folder: PathBuf,
}

impl Merger {
    /// Makes a merger that keeps at most `limit` bytes of host memory. While two runs are merged,
    /// their result is in memory too. The runs are therefore written to a file once they exceed
    /// half of the limit.
    pub fn new(plan: Plan, limit: usize, folder: PathBuf) -> Merger {
        Merger { plan, runs: Vec::new(), spilled: Vec::new(), limit, folder }
    }

    /// Returns the plan of the merger.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the bytes in temporary files.
    pub fn spilled(&self) -> u64 {
        self.spilled.iter().map(|run| run.bytes).sum()
    }

    /// Adds a batch. For each part of the plan, `parts` contains an 8-byte number for each key.
    ///
    /// # Errors
    ///
    /// The number of parts differs from the plan's; a part does not have 8 bytes for each key; the
    /// host has no memory; a temporary file cannot be written. Earlier batches are kept.
    pub fn add(&mut self, keys: Keys, parts: &[&[u8]]) -> Result<(), Error> {
        let width = self.plan.width();
        if parts.len() != width || parts.iter().any(|part| part.len() != keys.len() * 8) {
            return Err(Error::Invalid(format!(
                "there are {} parts of {:?} bytes, and {} keys have {width} parts of {} bytes",
                parts.len(),
                parts.iter().map(|part| part.len()).max().unwrap_or_default(),
                keys.len(),
                keys.len() * 8
            )));
        }
        let mut states = room(keys.len() * width)?;
        for key in 0..keys.len() {
            let part = |part: &&[u8]| {
                let bytes = part.get(key * 8..key * 8 + 8).unwrap_or_default();
                bytes.try_into().map_or(0, u64::from_le_bytes)
            };
            states.extend(parts.iter().map(part));
        }
        self.runs.push(Run { keys, states });
        while let [.., before, last] = &self.runs[..]
            && before.keys.len() < last.keys.len().saturating_mul(2)
        {
            self.merge_last();
        }
        if self.runs.iter().map(Run::memory).sum::<usize>() > self.limit / 2 {
            self.spill()?;
        }
        Ok(())
    }

    /// Writes all runs in memory to one file.
    fn spill(&mut self) -> Result<(), Error> {
        while self.runs.len() > 1 {
            self.merge_last();
        }
        if let Some(run) = self.runs.last() {
            self.spilled.push(SpilledRun::write(run, self.plan.width(), &self.folder)?);
            self.runs.clear();
        }
        Ok(())
    }

    fn merge_last(&mut self) {
        if let [.., earlier, later] = &self.runs[..] {
            let merged = earlier.merged(later, &self.plan);
            self.runs.truncate(self.runs.len() - 2);
            self.runs.push(merged);
        }
    }

    /// Ends the additions, and returns the groups.
    pub fn merged(mut self) -> Merged {
        while self.runs.len() > 1 {
            self.merge_last();
        }
        Merged(Arc::new(self))
    }
}

/// The groups of all batches.
#[derive(Clone, Debug)]
pub struct Merged(Arc<Merger>);

impl Merged {
    /// Returns the plan of the merger.
    pub fn plan(&self) -> &Plan {
        &self.0.plan
    }

    /// Returns the bytes in temporary files.
    pub fn spilled(&self) -> u64 {
        self.0.spilled()
    }

    /// Returns the groups in the order of their keys.
    ///
    /// # Errors
    ///
    /// A temporary file cannot be read.
    pub fn groups(&self) -> Result<Groups, Error> {
        let width = self.0.plan.width();
        let files = self.0.spilled.iter().map(|run| Cursor {
            run: run.reader(),
            key: Vec::new(),
            state: vec![0; width],
        });
        let mut groups = Groups {
            of: self.0.clone(),
            files: files.collect(),
            next: 0,
            heads: BinaryHeap::new(),
        };
        (0..=groups.files.len()).try_for_each(|source| groups.advance(source))?;
        Ok(groups)
    }
}

/// An iteration over groups, in the order of their keys.
pub struct Groups {
    of: Arc<Merger>,
    files: Vec<Cursor>,
    /// Index of the group that `advance` reads next, in the sorted run that is kept in host memory.
    next: usize,
    /// The key of each run's next group, and the run's index. The run in memory has the largest
    /// index. Equal keys are merged in the order in which their batches were added.
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
}

/// A reader of one sorted run in a temporary file, and the last group that was read.
struct Cursor {
    run: RunReader,
    key: Vec<u8>,
    state: Vec<u64>,
}

impl Groups {
    /// Returns the keys of the next groups, at most `most`, and each key's parts (partial results).
    /// Returns no keys if no groups are left.
    ///
    /// # Errors
    ///
    /// A temporary file cannot be read.
    pub fn next_chunk(&mut self, most: usize) -> Result<(Keys, Vec<u64>), Error> {
        let (of, mut made) = (self.of.clone(), Run::default());
        let width = of.plan.width();
        while made.keys.len() < most
            && let Some(Reverse((key, source))) = self.heads.pop()
        {
            made.push(&key, self.state(source));
            self.advance(source)?;
            while let Some(Reverse((same, _))) = self.heads.peek()
                && *same == key
                && let Some(Reverse((_, source))) = self.heads.pop()
            {
                let at = made.states.len() - width;
                of.plan.merge(&mut made.states[at..], self.state(source));
                self.advance(source)?;
            }
        }
        Ok((made.keys, made.states))
    }

    /// Returns the parts (partial results) of the last group that was read from run `source`.
    fn state(&self, source: usize) -> &[u64] {
        match (self.files.get(source), self.of.runs.first()) {
            (Some(file), _) => &file.state,
            (None, Some(run)) => run.get(self.next - 1, self.of.plan.width()).1,
            (None, None) => &[],
        }
    }

    /// Reads the next group of the sorted run `source`, if a group is left, and adds the group's
    /// key to `heads`.
    fn advance(&mut self, source: usize) -> Result<(), Error> {
        let Some(file) = self.files.get_mut(source) else {
            let run = self.of.runs.first().filter(|run| self.next < run.keys.len());
            if let Some(run) = run {
                self.heads.push(Reverse((run.keys.get(self.next).to_vec(), source)));
                self.next += 1;
            }
            return Ok(());
        };
        match file.run.next(&mut file.key, &mut file.state) {
            Ok(true) => self.heads.push(Reverse((file.key.clone(), source))),
            Ok(false) => {}
            Err(error) => {
                let (folder, bytes) = (self.of.folder.clone(), self.of.spilled());
                return Err(Error::Spill { folder, bytes, error });
            }
        }
        Ok(())
    }
}
