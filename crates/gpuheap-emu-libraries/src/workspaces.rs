//! Addresses and sizes of workspaces that programs pass to the libraries.
//!
//! With them, `gpuheap dry-run` distinguishes PyTorch's workspaces from results.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use gpuheap_driver::export;

/// Maximum number of workspace addresses, and of workspace sizes, to keep. Programs reuse the
/// addresses of a few workspaces. A model has one size for each shape of its convolutions.
const MOST: usize = 65_536;

static ADDRESSES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());
static SIZES: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

pub(crate) fn note_address(address: *const c_void) {
    insert(&ADDRESSES, address as u64);
}

pub(crate) fn note_size(bytes: u64) {
    insert(&SIZES, bytes);
}

fn insert(set: &Mutex<BTreeSet<u64>>, value: u64) {
    let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
    if value > 0 && set.len() < MOST {
        set.insert(value);
    }
}

fn has(set: &Mutex<BTreeSet<u64>>, value: u64) -> bool {
    set.lock().unwrap_or_else(PoisonError::into_inner).contains(&value)
}

export! {
    /// Returns 1 if a block may be a workspace, else 0. It may be one if some workspace of the
    /// program had this address, and some workspace had this size.
    fn gpuheap_emulated_is_workspace(address: u64, bytes: u64) -> c_int {
        c_int::from(has(&ADDRESSES, address) && has(&SIZES, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_has_address_and_size() {
        note_address(0x7000 as *const c_void);
        note_size(4096);
        note_size(0);
        assert_eq!(gpuheap_emulated_is_workspace(0x7000, 4096), 1);
        assert_eq!(gpuheap_emulated_is_workspace(0x7000, 0), 0);
        assert_eq!(gpuheap_emulated_is_workspace(0x7000, 512), 0);
        assert_eq!(gpuheap_emulated_is_workspace(0x9000, 4096), 0);
    }
}
