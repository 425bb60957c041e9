//! Kernels that the emulated device runs. With the feature `kernels`, it runs gpuheap's own
//! kernels. Without the feature, it runs no kernels.

#[cfg(feature = "kernels")]
pub(crate) use gpuheap_kernels::{Access, BLOCK, Kernel, Memory, Region};
#[cfg(not(feature = "kernels"))]
pub(crate) use none::{Access, BLOCK, Kernel, Memory, Region};

/// Stand-ins for the types of `gpuheap-kernels` in a build without that crate. Such a build has no
/// kernels, so the methods are never called.
#[cfg(not(feature = "kernels"))]
mod none {
    #![expect(dead_code, reason = "the emulator names fields that nothing makes")]

    /// A kernel that does not exist.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Kernel {}

    /// Number of threads in a block.
    pub(crate) const BLOCK: u32 = 1;

    /// One use of memory by a kernel launch.
    pub(crate) struct Access {
        pub(crate) writes: bool,
        pub(crate) align: u64,
        pub(crate) region: Region,
    }

    /// Range of memory that consists of runs of equal length.
    pub(crate) struct Region {
        pub(crate) address: u64,
        pub(crate) run: u64,
        pub(crate) axes: Vec<(u64, i64)>,
        none: Kernel,
    }

    /// The memory that a kernel sees.
    pub(crate) trait Memory {
        type Error;

        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Self::Error>;

        fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Self::Error>;
    }

    impl Kernel {
        /// Returns `None`, because no kernel exists.
        pub(crate) fn parse(_: &str) -> Option<Kernel> {
            None
        }

        pub(crate) fn name(&self) -> String {
            match *self {}
        }

        pub(crate) fn ptx(&self) -> String {
            match *self {}
        }

        pub(crate) fn words(&self) -> usize {
            match *self {}
        }

        pub(crate) fn only_copies(&self) -> bool {
            match *self {}
        }

        pub(crate) fn accesses(&self, _: &[u64]) -> Vec<Access> {
            match *self {}
        }

        pub(crate) fn for_each_copied(&self, _: &[u64], _: impl FnMut(u64, u64, u64)) {
            match *self {}
        }

        pub(crate) fn run<M: Memory>(&self, _: &[u64], _: &mut M) -> Result<(), M::Error> {
            match *self {}
        }
    }

    impl Region {
        pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
            match self.none {}
        }

        pub(crate) fn runs(&self) -> u64 {
            match self.none {}
        }

        pub(crate) fn for_each_run(&self, _: impl FnMut(u64)) {
            match self.none {}
        }
    }
}
