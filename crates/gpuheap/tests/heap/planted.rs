//! Programs that each use a heap's memory with one bug. The emulator's checks must find each bug,
//! and `examples/planted.rs` runs each program under `compute-sanitizer`.

use std::ffi::CString;

use gpuheap::{Block, Device, Heap, Stream};
use gpuheap_driver::{CUfunction, CUmodule, Driver};
use gpuheap_kernels::{Launch, Type, Unary, copy, unary};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// Writes through the address of a block that was freed.
    UseAfterFree,
    /// Writes one byte more than was requested, within the bytes that the heap added by rounding.
    OneByteMore,
    /// Writes from one block into the next block.
    IntoTheNeighbour,
    /// Reads a block before it is written. Its memory has bytes of an earlier block.
    NeverWritten,
    /// Frees and reuses a block on its stream while another stream may still write to the block.
    UnorderedReuse,
}

impl Bug {
    pub(crate) const ALL: [Bug; 5] = [
        Bug::UseAfterFree,
        Bug::OneByteMore,
        Bug::IntoTheNeighbour,
        Bug::NeverWritten,
        Bug::UnorderedReuse,
    ];
}

/// Operations that use device memory wrongly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// By the driver's fills and copies.
    Calls,
    /// By gpuheap's kernels.
    Kernels,
}

impl By {
    pub(crate) const ALL: [By; 2] = [By::Calls, By::Kernels];
}

/// Runs the program with a bug, on blocks of `bytes`. A call that uses memory wrongly may fail.
pub(crate) fn run(device: &Device, heap: &Heap, bytes: u64, bug: Bug, by: By) {
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    let scene = Scene { device, by, source: heap.allocate(2 * bytes, &one).unwrap() };
    scene.call(|driver| {
        // SAFETY: the source block is live, and the stream exists.
        unsafe {
            let _ =
                driver.cuMemsetD8Async(scene.source.address(), 1, 2 * bytes as usize, one.raw());
        };
    });
    let block = heap.allocate(bytes, &one).unwrap();
    let address = block.address();
    scene.write(address, bytes, &one);
    match bug {
        Bug::UseAfterFree => {
            drop(block);
            scene.write(address, bytes, &one);
        }
        Bug::OneByteMore => scene.write(address, bytes + 1, &one),
        Bug::IntoTheNeighbour => {
            let neighbour = heap.allocate(bytes, &one).unwrap();
            scene.write(neighbour.address(), bytes, &one);
            // The write starts in the lower block, to reach the upper block if they touch.
            let first = address.min(neighbour.address());
            scene.write(first, bytes + bytes / 2, &one);
        }
        Bug::NeverWritten => {
            drop(block);
            let again = heap.allocate(bytes, &one).unwrap();
            scene.read(again.address(), bytes, &one);
        }
        Bug::UnorderedReuse => {
            one.synchronize().unwrap();
            scene.write(address, bytes, &two);
            drop(block);
            let again = heap.allocate(bytes, &one).unwrap();
            scene.write(again.address(), bytes, &one);
        }
    }
    // If the planted bug broke the context, these calls fail. Their errors are ignored, because
    // only the bug matters.
    let _ = (one.synchronize(), two.synchronize());
}

struct Scene<'a> {
    device: &'a Device,
    by: By,
    /// A block whose memory was written.
    source: Block,
}

impl Scene<'_> {
    fn call<R>(&self, work: impl FnOnce(&dyn Driver) -> R) -> Option<R> {
        self.device.with_current(work).ok()
    }

    fn write(&self, address: u64, bytes: u64, stream: &Stream) {
        match self.by {
            By::Calls => self.call(|driver| {
                // SAFETY: the write is wrong on purpose. The emulator's checks report it. On a GPU,
                // it reaches only memory of this program.
                let _ = unsafe { driver.cuMemsetD8Async(address, 2, bytes as usize, stream.raw()) };
            }),
            By::Kernels => {
                let source = self.source.address();
                self.launch(&copy(1, &[bytes as usize], address, &[1], source, &[1]), stream)
            }
        };
    }

    fn read(&self, address: u64, bytes: u64, stream: &Stream) {
        match self.by {
            By::Calls => self.call(|driver| {
                let mut host = vec![0_u8; bytes as usize];
                // SAFETY: `host` and the block have this length. The driver waits for the copy.
                unsafe {
                    let _ = driver.cuStreamSynchronize(stream.raw());
                    let _ = driver.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, host.len());
                };
            }),
            By::Kernels => {
                let to = self.source.address();
                self.launch(&unary(Unary::Negate, Type::I8, bytes as usize, to, address), stream)
            }
        };
    }

    fn launch(&self, launches: &[Launch], stream: &Stream) -> Option<()> {
        self.call(|driver| {
            for launch in launches {
                let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
                let text = CString::new(launch.kernel.ptx()).unwrap();
                let name = CString::new(launch.kernel.name()).unwrap();
                let mut parameter = launch.words.as_slice().as_ptr().cast_mut().cast();
                let none = std::ptr::null_mut();
                // SAFETY: the kernel's text, name and parameters outlive the calls. The kernel's
                // accesses are the planted bug.
                unsafe {
                    let _ = driver.cuModuleLoadData(&mut module, text.as_ptr().cast());
                    let _ = driver.cuModuleGetFunction(&mut function, module, name.as_ptr());
                    let (grid, block, raw) = (launch.grid, launch.block, stream.raw());
                    let _ = driver.cuLaunchKernel(
                        function,
                        grid,
                        1,
                        1,
                        block,
                        1,
                        1,
                        0,
                        raw,
                        &mut parameter,
                        none,
                    );
                }
            }
        })
    }
}
