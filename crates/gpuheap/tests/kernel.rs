//! A kernel reads and writes in place, in memory that the host can access too. Kernels run only on
//! a real device: set `GPUHEAP_TEST_DEVICE=cuda:0`.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

#[path = "heap/support.rs"]
#[expect(dead_code, reason = "shared with the tests of the heap, which use the rest")]
mod support;

use std::ffi::c_void;

use gpuheap::emu::Schedule;
use gpuheap::{Device, DeviceArray, MemoryKind, PoolKind, Stream};
use gpuheap_driver::{CUfunction, CUmodule, check};
use support::{assert_all_returned, device, heap, on_real_gpu};

const COUNT: usize = 100_000;
const BLOCK: u32 = 256;

/// `to[i] = from[i] + 1` for `i` below `count`.
const ADD_ONE: &std::ffi::CStr = c"
.version 7.0
.target sm_50
.address_size 64
.visible .entry add_one(.param .u64 from, .param .u64 to, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mul.wide.u32 %rd5, %r5, 4;
    add.s64 %rd6, %rd3, %rd5;
    ld.global.u32 %r6, [%rd6];
    add.s32 %r6, %r6, 1;
    add.s64 %rd7, %rd4, %rd5;
    st.global.u32 [%rd7], %r6;
DONE:
    ret;
}
";

#[test]
fn kernel_uses_every_kind_in_place() {
    if !on_real_gpu() {
        return;
    }
    let device = device(1 << 30, Schedule::Immediate);
    let heap = heap(&device, PoolKind::Split);
    // The kernels run on a stream other than the arrays' own stream.
    let stream = device.stream().unwrap();
    let target = heap.target().unwrap();
    let add_one = Kernel::load(&device);
    let host: Vec<u32> = (0..COUNT as u32).collect();
    let pinned = target.kind(MemoryKind::Pinned).array(&host).unwrap();
    let unified = target.kind(MemoryKind::Unified).array(&host).unwrap();
    let registered = target.register(host.clone()).unwrap();
    for mut array in [pinned, unified, registered] {
        let kind = array.kind();
        // The kernel also sees later writes by the host.
        array.as_mut_slice().unwrap()[7] = 1_000_000;
        let mut to = target.filled(COUNT, 0_u32).unwrap();
        add_one.launch(&array, &mut to, &stream);
        let mut expected: Vec<u32> = host.iter().map(|value| value + 1).collect();
        expected[7] = 1_000_001;
        assert!(to.to_vec().unwrap() == expected, "{kind} was read as something else");
        // The kernel also writes to the host's memory, and the host reads the results in place.
        add_one.launch(&to, &mut array, &stream);
        expected.iter_mut().for_each(|value| *value += 1);
        assert!(array.as_slice().unwrap()[..] == expected, "{kind} was not written in place");
        if kind == MemoryKind::Registered {
            assert!(array.unregister().unwrap() == expected);
        }
    }
    drop(add_one);
    assert_all_returned(&device, &heap, "kernel");
}

struct Kernel<'a> {
    device: &'a Device,
    module: CUmodule,
    function: CUfunction,
}

impl Kernel<'_> {
    fn load(device: &Device) -> Kernel<'_> {
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        let loaded = device.with_current(|driver| {
            // SAFETY: the pointers are valid for the calls, and both texts end with a zero byte.
            unsafe {
                let loaded = driver.cuModuleLoadData(&mut module, ADD_ONE.as_ptr().cast());
                check("cuModuleLoadData", loaded)?;
                let name = c"add_one".as_ptr();
                let found = driver.cuModuleGetFunction(&mut function, module, name);
                check("cuModuleGetFunction", found)
            }
        });
        loaded.unwrap().unwrap();
        Kernel { device, module, function }
    }

    /// Enqueues the kernel.
    fn launch(&self, from: &DeviceArray<u32>, to: &mut DeviceArray<u32>, stream: &Stream) {
        let mut from = from.device_ptr(stream).unwrap();
        let mut to = to.device_ptr(stream).unwrap();
        let mut count = COUNT as u32;
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut from).cast(), (&raw mut to).cast(), (&raw mut count).cast()];
        let launched = self.device.with_current(|driver| {
            // SAFETY: the kernel takes these parameters and stays within both arrays.
            unsafe {
                driver.cuLaunchKernel(
                    self.function,
                    count.div_ceil(BLOCK),
                    1,
                    1,
                    BLOCK,
                    1,
                    1,
                    0,
                    stream.raw(),
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        });
        check("cuLaunchKernel", launched.unwrap()).unwrap();
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        // SAFETY: `load` loaded the module, and its work was waited for. A failing test must not
        // fail again here.
        let _ = self.device.with_current(|driver| unsafe { driver.cuModuleUnload(self.module) });
    }
}
