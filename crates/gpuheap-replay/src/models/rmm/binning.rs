//! RMM's bins.

use crate::models::spans::Live;
use crate::models::{Books, Figures, Model, Refusal, Request, SettingError, Ticket};

/// RMM's `BinningMemoryResource`. It has bins of fixed sizes over another resource. Each bin takes
/// 128 blocks in advance.
#[derive(Debug)]
pub struct Binning<M> {
    upstream: M,
    bins: Vec<Bin>,
    live: Live<Binned>,
    /// Figures of the program's blocks. The model `upstream` counts the driver's memory and calls.
    figures: Figures,
}

#[derive(Debug)]
struct Bin {
    bytes: u64,
    free: u64,
}

#[derive(Debug, Clone, Copy)]
enum Binned {
    Block { bin: usize, requested: u64 },
    Upstream(Ticket),
}

/// Number of blocks that a bin takes in one step.
const BIN_BLOCKS: u64 = 128;

impl<M: Model> Binning<M> {
    /// Makes bins of `2^smallest` to `2^largest` bytes over `upstream`.
    ///
    /// # Errors
    /// Returns an error if the exponents give no bin, or if the upstream is too small for the
    /// blocks.
    pub fn new(upstream: M, smallest: u32, largest: u32) -> Result<Self, SettingError> {
        if smallest > largest || largest >= 40 || smallest < 8 {
            return Err(SettingError::new(
                format!("bins of 2^{smallest} to 2^{largest} bytes"),
                "give exponents between 8 and 39, the smaller one first, for example 18 and 22",
            ));
        }
        let bins = (smallest..=largest).map(|power| Bin { bytes: 1 << power, free: 0 }).collect();
        let figures = upstream.figures();
        let mut binning = Self { upstream, bins, live: Live::default(), figures };
        for bin in 0..binning.bins.len() {
            if binning.fill(bin, 0).is_err() {
                return Err(SettingError::new(
                    "the upstream has not enough memory for the bins",
                    "use fewer or smaller bins",
                ));
            }
        }
        Ok(binning)
    }

    fn fill(&mut self, bin: usize, stream: u64) -> Result<(), Box<Refusal>> {
        let bytes = self.bins[bin].bytes * BIN_BLOCKS;
        self.upstream.allocate(Request { bytes, stream, pool: 0 })?;
        self.bins[bin].free += BIN_BLOCKS;
        Ok(())
    }

    fn serve_from_bin(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let Some(bin) = self.bins.iter().position(|bin| bin.bytes >= request.bytes) else {
            let before = self.upstream.figures().allocated;
            let ticket = self.upstream.allocate(request)?;
            self.figures.allocated += self.upstream.figures().allocated - before;
            return Ok(self.live.add(Binned::Upstream(ticket)));
        };
        if self.bins[bin].free == 0 {
            self.fill(bin, request.stream)?;
        }
        self.bins[bin].free -= 1;
        self.figures.allocated += self.bins[bin].bytes;
        self.figures.requested += request.bytes;
        Ok(self.live.add(Binned::Block { bin, requested: request.bytes }))
    }
}

impl<M: Model> Model for Binning<M> {
    fn name(&self) -> String {
        "rmm:binning".to_owned()
    }

    fn serve(&mut self, request: Request) -> Result<Ticket, Box<Refusal>> {
        let result = self.serve_from_bin(request);
        let figures = &mut self.figures;
        figures.active = figures.allocated;
        figures.peak_active = figures.peak_active.max(figures.active);
        result.map_err(|mut refusal| {
            self.figures.failures += 1;
            refusal.figures = self.figures();
            refusal
        })
    }

    fn free(&mut self, ticket: Ticket, stream: u64) {
        match self.live.take(ticket) {
            None => return,
            Some(Binned::Block { bin, requested }) => {
                self.bins[bin].free += 1;
                self.figures.allocated -= self.bins[bin].bytes;
                self.figures.requested -= requested;
            }
            Some(Binned::Upstream(ticket)) => {
                let before = self.upstream.figures().allocated;
                self.upstream.free(ticket, stream);
                self.upstream.complete(ticket);
                self.figures.allocated -= before - self.upstream.figures().allocated;
            }
        }
        self.figures.active = self.figures.allocated;
    }

    fn books(&self) -> &Books {
        self.upstream.books()
    }

    fn figures(&self) -> Figures {
        let Figures { reserved, peak_reserved, segments, driver_calls, retries, .. } =
            self.upstream.figures();
        Figures { reserved, peak_reserved, segments, driver_calls, retries, ..self.figures }
    }
}
