//! Plans stitched ranges: selects the free memory that a range maps one after the other.

use crate::source::Segment;

/// Adjacent free blocks. A stitched range (chunks mapped one after the other) could use them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Start and end of the chunks that lie entirely within these free blocks.
    pub(crate) whole: (u64, u64),
}

impl Run {
    pub(crate) fn whole(self) -> u64 {
        self.whole.1.saturating_sub(self.whole.0)
    }

    /// Returns the number of bytes before the first whole chunk. They end a chunk that begins
    /// before the run. Returns zero if the run contains no chunk border.
    pub(crate) fn before(self) -> u64 {
        if self.whole.0 <= self.whole.1 { self.whole.0 - self.start } else { 0 }
    }

    /// Returns the number of bytes after the last whole chunk. They begin a chunk that ends after
    /// the run. Returns zero if the run contains no chunk border.
    pub(crate) fn after(self) -> u64 {
        if self.whole.0 <= self.whole.1 { self.end - self.whole.1 } else { 0 }
    }

    /// Returns the length of the part of this run that could be the first part of a stitched range.
    /// It ends where a chunk ends, because the range continues with another chunk.
    pub(crate) fn head(self) -> u64 {
        self.before() + self.whole()
    }

    /// Returns the length of the part of this run that could be the last part of a stitched range.
    /// It begins where a chunk begins, because another chunk is mapped before it.
    pub(crate) fn tail(self) -> u64 {
        self.whole() + self.after()
    }

    /// Returns the part of the run after its whole chunks, if that part is not empty.
    fn remainder(self) -> Option<Run> {
        let left = Run { start: self.whole.1, end: self.end, whole: (self.whole.1, self.whole.1) };
        (self.after() > 0).then_some(left)
    }
}

/// Rule for choosing the runs of free blocks that form a stitched range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// Few runs of free blocks, and new memory for missing bytes. If a run inside the range ends
    /// within a chunk, that part of the chunk stays free for later requests. Stitching these parts
    /// too cost the trace `serve_threads` 0.01 of utilisation.
    Few,
    /// As much free memory as possible: the last attempt before a request fails.
    Most,
}

/// Plan of a stitched range: its pieces, and the bytes that need new memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) runs: Vec<Segment>,
    pub(crate) missing: u64,
}

/// Plans a range of `bytes` from `runs`. The caller has sorted the runs by the size of their whole
/// chunks. The plan begins with one run's [head](Run::head). Whole chunks follow, first those in
/// the runs with the most. The plan ends with the shortest [tail](Run::tail) that suffices.
pub(crate) fn plan_runs(mut runs: Vec<Run>, bytes: u64, packing: Packing) -> Plan {
    let leads = |run: &Run| match packing {
        Packing::Few => (run.head(), 0, run.start),
        Packing::Most => (run.before(), run.head(), run.start),
    };
    let mut plan = Plan { runs: Vec::new(), missing: bytes };
    let take = |address: u64, length: u64, plan: &mut Plan| {
        let length = length.min(plan.missing);
        if length > 0 {
            plan.runs.push(Segment { address, bytes: length });
            plan.missing -= length;
        }
    };
    // Remainders of the runs in the plan.
    let mut rests: Vec<Run> = Vec::new();
    let rest = |run: Run| run.remainder().filter(|_| packing == Packing::Most);
    let first = (0..runs.len()).max_by_key(|at| leads(&runs[*at]));
    if let Some(first) = first.filter(|at| runs[*at].head() > 0) {
        let first = runs.remove(first);
        take(first.start, first.head(), &mut plan);
        rests.extend(rest(first));
    }
    let longest = runs.iter().chain(&rests).map(|run| run.tail()).max().unwrap_or(0);
    while plan.missing > 0 {
        let enough = |run: &&Run| run.tail() >= plan.missing;
        // The search for the last part of the range visits all runs, so it is skipped if hopeless.
        if longest >= plan.missing
            && let Some(tail) =
                runs.iter().chain(&rests).filter(enough).min_by_key(|run| (run.tail(), run.start))
        {
            take(tail.whole.0, tail.tail(), &mut plan);
            break;
        }
        match runs.last().copied().filter(|run| run.whole() > 0) {
            Some(run) => {
                runs.pop();
                take(run.whole.0, run.whole(), &mut plan);
                rests.extend(rest(run));
            }
            None => {
                // No run has a whole chunk or a long enough tail. The longest tail is used.
                let most = runs.iter().chain(&rests).max_by_key(|run| (run.tail(), run.start));
                if let Some(tail) = most.filter(|run| run.tail() > 0) {
                    take(tail.whole.0, tail.tail(), &mut plan);
                }
                break;
            }
        }
    }
    plan
}
