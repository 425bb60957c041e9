//! Models RMM, the memory manager of RAPIDS, with its pool, arena and bins.

mod arena;
mod binning;
mod pool;

pub use arena::Arena;
pub use binning::Binning;
pub use pool::Pool;

/// Granularity of requests, in bytes.
const ALIGN: u64 = 256;
/// One of the two handles of the legacy default stream. The other handle is 0.
const LEGACY: u64 = 1;

fn stream_key(stream: u64) -> u64 {
    if stream == 0 { LEGACY } else { stream }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::cuda::Cuda;
    use crate::models::{Model, Request};

    const MIB: u64 = 1 << 20;

    fn request(bytes: u64, stream: u64) -> Request {
        Request { bytes, stream, pool: 0 }
    }

    /// Shows RMM's issue 1957: chunks never merge.
    #[test]
    fn pool_chunks_never_merge() {
        let mut pool = Pool::new(1 << 30, 256, Some(1024)).unwrap();
        assert!(pool.allocate(request(1024, 0)).is_err());
        assert!(pool.allocate(request(256, 0)).is_ok());
    }

    #[test]
    fn unbounded_pool_doubles_while_memory_lasts() {
        let mut pool = Pool::new(100 * MIB, 16 * MIB, None).unwrap();
        pool.allocate(request(16 * MIB, 0)).unwrap();
        pool.allocate(request(MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 32 * MIB);
        pool.allocate(request(30 * MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 64 * MIB);
        // The pool first tries to grow by 64 MiB, but the device has only 36 MiB left. Half of 64
        // MiB is less than the request, so the pool then tries the request's size.
        pool.allocate(request(35 * MIB, 0)).unwrap();
        assert_eq!(pool.figures().reserved, 99 * MIB);
    }

    #[test]
    fn pool_merges_lists_before_it_grows() {
        let mut pool = Pool::new(1 << 30, 4 * MIB, None).unwrap();
        let one = pool.allocate(request(2 * MIB, 5)).unwrap();
        let other = pool.allocate(request(2 * MIB, 6)).unwrap();
        pool.free(one, 5);
        pool.free(other, 6);
        // Neither list has a piece of 4 MiB, so the lists are merged.
        pool.allocate(request(4 * MIB, 7)).unwrap();
        assert_eq!(pool.figures().reserved, 4 * MIB);
        assert!(Pool::new(1 << 30, 100, None).is_err());
        assert!(Pool::new(1 << 30, 512, Some(256)).is_err());
        assert!(Pool::new(1 << 20, 1 << 30, None).is_err());
    }

    #[test]
    fn bins_take_992_mib_in_advance() {
        let mut binning = Binning::new(Cuda::new(4 << 30), 18, 22).unwrap();
        assert_eq!(binning.figures().reserved, 992 * MIB);
        let tickets: Vec<_> = (0..129).map(|_| binning.allocate(request(1, 0)).unwrap()).collect();
        assert_eq!(binning.figures().reserved, (992 + 32) * MIB);
        tickets.into_iter().for_each(|ticket| binning.free(ticket, 0));
        let large = binning.allocate(request((4 << 20) + 1, 0)).unwrap();
        assert_eq!(binning.figures().reserved, (992 + 32 + 6) * MIB);
        binning.free(large, 0);
        assert_eq!(binning.figures().allocated, 0);
        assert!(Binning::new(Cuda::new(MIB), 18, 22).is_err());
    }

    #[test]
    fn arena_returns_superblocks_before_it_fails() {
        let mut arena = Arena::new(64 * MIB, Some(8 * MIB)).unwrap();
        assert_eq!(arena.figures().reserved, 8 * MIB);
        let small: Vec<_> =
            (0..8).map(|stream| arena.allocate(request(1000, stream + 3)).unwrap()).collect();
        // Each stream holds a superblock of 1 MiB. No memory is left for a large request.
        assert!(arena.allocate(request(2 * MIB, 3)).is_err());
        small.iter().zip(3..).for_each(|(&ticket, stream)| arena.free(ticket, stream));
        let large = arena.allocate(request(8 * MIB, 3)).unwrap();
        arena.free(large, 4);
        assert_eq!(arena.figures().allocated, 0);
        assert!(Arena::new(64 * MIB, Some(1)).is_err());
        assert!(Arena::new(MIB, Some(8 * MIB)).is_err());
    }
}
