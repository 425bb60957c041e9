//! Lists the open scopes of a published heap, so that other processes can query them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gpuheap_publish::OpenScope;
use rustc_hash::FxHashMap;

/// A scope that can be read while it is open.
pub(crate) trait PublishedScope: Send + Sync {
    /// Returns the figures. Leaves the name of the device empty.
    fn figures(&self) -> OpenScope;
}

/// Open scopes of a heap, keyed by the scope's index.
#[derive(Default)]
pub(crate) struct OpenScopes {
    open: Mutex<FxHashMap<u64, Weak<dyn PublishedScope>>>,
}

impl OpenScopes {
    /// Adds a scope until [`ended`](OpenScopes::ended).
    #[cfg(feature = "arrays")]
    pub(crate) fn began(&self, number: u64, scope: Weak<dyn PublishedScope>) {
        self.lock().insert(number, scope);
    }

    #[cfg(feature = "arrays")]
    pub(crate) fn ended(&self, number: u64) {
        let ended = self.lock().remove(&number);
        // Dropped without the lock.
        drop(ended);
    }

    /// Returns the figures of all scopes. `device` is the name of their device.
    pub(super) fn figures(&self, device: &str) -> Vec<OpenScope> {
        // Clones the list first: a scope may end while its figures are read, and that end takes the
        // lock.
        let open: Vec<_> = self.lock().values().cloned().collect();
        let figures = |scope: Arc<dyn PublishedScope>| OpenScope {
            device: device.to_owned(),
            ..scope.figures()
        };
        open.iter().filter_map(|scope| scope.upgrade().map(figures)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<u64, Weak<dyn PublishedScope>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
