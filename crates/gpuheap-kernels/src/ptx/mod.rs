//! PTX.

use crate::{Kernel, Type};

/// Elements that a thread of a strided kernel takes at a time.
pub(crate) const STRIDED_EACH: u64 = 4;

/// Elements that a thread of a flat kernel takes at a time.
pub(crate) fn flat_each(input: Type, output: Type) -> u64 {
    let (small, large) = (input.size().min(output.size()), input.size().max(output.size()));
    (16 / large).max(4 / small) as u64
}

impl Kernel {
    /// The module that has this kernel as its only entry.
    pub fn ptx(&self) -> String {
        format!(
            ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry {}()\n{{\nret;\n}}\n",
            self.name()
        )
    }
}
