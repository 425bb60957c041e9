//! Options of readers.

/// Options of a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    pub(crate) recorded_only: bool,
    pub(crate) unpacked_limit: u64,
    pub(crate) host_memory: bool,
    pub(crate) symbols: bool,
    pub(crate) pools: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            recorded_only: false,
            unpacked_limit: 4 << 30,
            host_memory: false,
            symbols: true,
            pools: true,
        }
    }
}

impl ReadOptions {
    /// Leaves out the blocks that were live before a snapshot's recording began. Their frees then
    /// count as [`Trace::unknown_frees`](crate::Trace::unknown_frees). Default: `false`.
    pub fn recorded_only(mut self, recorded_only: bool) -> Self {
        self.recorded_only = recorded_only;
        self
    }

    /// Limits the bytes of the unpacked file, so that a small hostile file cannot fill the memory.
    /// The values of a pickle have a separate limit of the same size. Whatever the limit, the
    /// reader refuses a pickle with values that take far more memory than the pickle's own length.
    /// Default: 4 GiB.
    pub fn unpacked_limit(mut self, bytes: u64) -> Self {
        self.unpacked_limit = bytes;
        self
    }

    /// Adds a trace for the pinned and registered host memory of a capture. This trace has no
    /// device. Default: `false`.
    pub fn host_memory(mut self, host_memory: bool) -> Self {
        self.host_memory = host_memory;
        self
    }

    /// Looks up names and lines of native frames in the files that a capture names. Default:
    /// `true`.
    pub fn symbols(mut self, symbols: bool) -> Self {
        self.symbols = symbols;
        self
    }

    /// Reads the blocks of frameworks' pools from a capture. If `true`, memory that a pool took
    /// from the driver is a segment, and only the bytes of the pool's blocks count. If `false`,
    /// that memory is itself a block, and the pool's blocks are left out. Default: `true`.
    pub fn pools(mut self, pools: bool) -> Self {
        self.pools = pools;
        self
    }
}
