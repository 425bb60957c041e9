//! PTX of the kernels, generated from code that all types and operations share.

mod elementwise;
mod group;
mod reduce;
mod strided;
mod take;
mod value;
mod writer;

use crate::Kernel;
use crate::kernel::{Kind, Path};

impl Kernel {
    /// Returns the PTX of a module that has this kernel as its only entry. The module runs on every
    /// device from Maxwell on. If the kernel adds doubles by key, the module needs Pascal or later.
    pub fn ptx(&self) -> String {
        match self.0 {
            Kind::Elementwise { path: Path::Flat, does, of, left, right } => {
                elementwise::flat(self, does, of, [left, right])
            }
            Kind::Elementwise { path: Path::Strided, does, of, left, right } => {
                strided::elementwise(self, does, of, [left, right])
            }
            Kind::Elementwise { path: Path::Vectors, does, of, left, right } => {
                strided::vectors(self, does, of, [left, right])
            }
            Kind::Cast { from, to } => elementwise::cast(self, from, to),
            Kind::Copy { unit } => strided::copy(self, unit),
            Kind::Rows { op, of } => reduce::rows(self, op, of),
            Kind::Columns { op, of } => reduce::columns(self, op, of),
            Kind::Take { unit } => take::take(self, unit),
            Kind::Groups { shared, fold, of, key } => group::group(self, shared, fold, of, key),
        }
    }
}
