//! Error texts of refused arithmetic.

use gpuheap::emu::{Fault, FaultPlan, Options, Profile, Schedule};
use gpuheap::{Device, Error};
use gpuheap_driver::CUresult;
use ndarray::{Array2, IxDyn, array, s};

use crate::support::emulated;

#[test]
fn errors_name_cause_and_remedy() {
    let profile = || Profile::with_memory(1 << 30).without_context();
    let options = Options { devices: vec![profile(), profile()], ..Options::default() };
    let devices = Device::emulated_devices(options).unwrap();
    let targets = [0, 1].map(|at| devices[at].heap().unwrap().target().unwrap());
    let mut a = targets[0].array(&Array2::<f32>::ones((2, 3))).unwrap();
    let far = targets[1].array(&[1.0_f32]).unwrap();
    let four = targets[0].array(&[1.0_f32; 4]).unwrap();
    let deep = targets[0].zeroed::<f32, _>((4, 2, 3)).unwrap();
    let line = targets[0].array(&[0, 1, 2, 3]).unwrap().into_shared();
    let nothing = targets[0].zeroed::<i32, _>((0, 2)).unwrap();
    let number = targets[0].array(&ndarray::arr0(1).into_dyn()).unwrap();
    let keys = targets[0].array(&[0_i32, -7]).unwrap();
    let dynamic = a.reshape(IxDyn(&[2, 3])).unwrap();
    let all = ndarray::SliceInfo::<_, IxDyn, IxDyn>::try_from(vec![(..).into()]).unwrap();
    let mut texts: Vec<String> = Vec::new();
    let mut said = |error: Option<Error>| texts.push(error.unwrap().to_string());
    said((&a + &four).err());
    said((&a + &far).err());
    said(dynamic.copy_slice(&all).err());
    said(dynamic.copy_permuted(IxDyn(&[0, 0])).err());
    said(a.add_assign(&deep).err());
    said(line.clone().slice_mut(1..).unwrap().add_assign(line.slice(..3).unwrap()).err());
    said(line.clone().write_slice(s![1..], &line.slice(..3).unwrap()).err());
    said(a.write_slice(s![.., 0], &four).err());
    said(a.copy_slice(s![2, ..]).err());
    said(a.copy_slice(s![.., 1..9;2]).err());
    said(a.copy_slice(s![-5.., ..]).err());
    said(a.broadcast_to((2, 4)).err());
    said(nothing.mean().err());
    said(nothing.min_axis(0).err());
    said(a.sum_axis(2).err());
    said(line.max_axis(1).err());
    said(number.sum_axis(0).err());
    said(a.sum_by_key(&keys, 3).err());
    said(a.sum_by_key(&line.copy().unwrap(), 3).err());
    said(number.mean_by_key(&keys, 3).err());
    insta::assert_snapshot!(texts.join("\n\n"));
    assert_eq!(a.to_ndarray().unwrap(), array![[1.0; 3], [1.0; 3]]);
}

#[test]
fn a_kernel_that_fails_is_named() {
    let device = emulated(1 << 30, Schedule::Immediate);
    let emulator = device.emulator().unwrap().clone();
    let a = device.heap().unwrap().target().unwrap().array(&[1, 2, 3]).unwrap();
    let mut texts = Vec::new();
    for (call, code) in [
        ("cuModuleLoadData", CUresult::ERROR_NO_BINARY_FOR_GPU),
        ("cuModuleGetFunction", CUresult::ERROR_NOT_FOUND),
        ("cuLaunchKernel", CUresult::ERROR_LAUNCH_FAILED),
    ] {
        emulator.set_faults(FaultPlan::new([Fault::nth(call, 1, code)]));
        let error = (&a + 1).unwrap_err();
        emulator.set_faults(FaultPlan::default());
        assert_eq!(error.driver().unwrap().function(), call);
        texts.push(error.to_string());
    }
    insta::assert_snapshot!(texts.join("\n\n"));
}
