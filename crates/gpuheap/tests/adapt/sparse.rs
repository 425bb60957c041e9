//! Sparse matrices of `sprs`.

use gpuheap::adapt::DeviceCsMat;
use gpuheap::emu::Schedule;
use gpuheap::{DeviceArray, Host, PoolKind};
use sprs::{CsMat, CsMatI, TriMat};

use crate::support::{assert_all_returned, make_heap};

fn matrix() -> CsMat<f64> {
    let mut triplets = TriMat::new((3, 4));
    for (row, column, value) in [(0, 1, 1.5), (2, 0, 2.5), (2, 3, 0.1)] {
        triplets.add_triplet(row, column, value);
    }
    triplets.to_csr()
}

#[test]
fn sparse_layouts_round_trip() {
    let (device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let target = heap.target().unwrap();
    for host in [matrix(), matrix().to_csc(), CsMat::zero((5, 0))] {
        let up: DeviceCsMat<f64> = target.adapt(&host).unwrap();
        assert_eq!((up.storage, up.shape), (host.storage(), host.shape()));
        assert_eq!(up.values.to_vec().unwrap(), host.data());
        assert_eq!(Host.adapt(&up).unwrap(), host);
        assert_eq!(Host.adapt(&target.adapt(&host.view()).unwrap()).unwrap(), host);
        assert_eq!(Host.adapt(&target.adapt(&up).unwrap()).unwrap(), host);
        assert_eq!(Host.adapt(&host).unwrap(), host);
    }
    // Tests a window whose first row does not begin at zero.
    let host = matrix();
    let window = host.slice_outer(1..3);
    let back = Host.adapt(&target.adapt(&window).unwrap()).unwrap();
    assert_eq!(back.to_dense(), window.to_dense());
    drop(target);
    assert_all_returned(&device, &heap, "sparse");
}

#[test]
fn sparse_conversion_keeps_indices() {
    let (_device, heap) = make_heap(1 << 30, Schedule::Seeded(1), PoolKind::Split);
    let target = heap.target().unwrap();
    let small: CsMatI<f64, u32> = matrix().to_other_types();
    let up: DeviceCsMat<f32, u32> = target.cu(&small).unwrap();
    let starts: &DeviceArray<u32> = &up.starts;
    assert_eq!(starts.to_vec().unwrap(), [0, 1, 1, 3]);
    assert_eq!(up.indices.to_vec().unwrap(), [1, 0, 3]);
    assert_eq!(up.values.to_vec().unwrap(), [1.5, 2.5, 0.1]);
    let up: Vec<DeviceCsMat<f32>> = target.narrow(&vec![matrix()]).unwrap();
    let text = format!("{:?}", up[0]);
    assert!(text.contains("shape: (3, 4)") && text.contains("[1.5, 2.5, 0.1]"), "{text}");
    drop(up);
    // A copy to the host checks the matrix, because a kernel may write invalid indices.
    let mut up = target.adapt(&matrix()).unwrap();
    up.indices.fill(9).unwrap();
    let error = Host.adapt(&up).unwrap_err().to_string();
    assert!(
        error.starts_with("what the device has is no sparse matrix of shape (3, 4)"),
        "{error}"
    );
}
