//! NICs and GPUs: what the kernel shows of them, and what CUDA's driver adds
//! (Documentation/ABI/stable/sysfs-class-infiniband).

use super::Root;
use crate::doctor::facts::{Facility, Gpu, Gpus, Nic, Place, Port};
use std::fs::{self, OpenOptions};
use std::path::{Component, Path};

const NICS: &str = "/sys/class/infiniband";
const GPUS: &str = "/proc/driver/nvidia/gpus";

pub(super) fn nics(root: &Root) -> Vec<Nic> {
    root.names(NICS).into_iter().map(|name| nic(root, name)).collect()
}

fn nic(root: &Root, name: String) -> Nic {
    let folder = Path::new(NICS).join(&name);
    let driver = fs::read_link(root.path(folder.join("device/driver"))).ok();
    let mut ports: Vec<Port> = root
        .names(folder.join("ports"))
        .iter()
        .filter_map(|number| {
            let read = |file: &str| root.text(folder.join("ports").join(number).join(file));
            Some(Port {
                number: number.parse().ok()?,
                state: read("state").map(|state| last_word(&state)).unwrap_or_default(),
                rate: read("rate").unwrap_or_default(),
                link: read("link_layer").unwrap_or_default(),
            })
        })
        .collect();
    ports.sort_by_key(|port| port.number);
    Nic {
        driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
        place: place(root, &folder.join("device")),
        verbs: verbs(root, &folder, &name),
        ports,
        name,
    }
}

/// `ACTIVE` of `4: ACTIVE`.
fn last_word(state: &str) -> String {
    state.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Whether the device's file may be opened, as `ibv_open_device` does.
fn verbs(root: &Root, folder: &Path, name: &str) -> Facility {
    let of_device = root.names(folder.join("device/infiniband_verbs")).into_iter().next();
    // A software device has no `device`: its file is found by what it says it is of.
    let of_class = || {
        let class = Path::new("/sys/class/infiniband_verbs");
        root.names(class)
            .into_iter()
            .find(|file| root.text(class.join(file).join("ibdev")).as_deref() == Some(name))
    };
    let Some(file) = of_device.or_else(of_class) else {
        return Facility::Refused(format!("{name} has no uverbs device: is the module ib_uverbs loaded?"));
    };
    let path = Path::new("/dev/infiniband").join(file);
    match OpenOptions::new().read(true).write(true).open(root.path(&path)) {
        Ok(_) => Facility::Works,
        Err(error) => Facility::Refused(format!("open({}): {error}", path.display())),
    }
}

/// Where the device is that a link of sysfs leads to.
fn place(root: &Root, link: &Path) -> Place {
    let Ok(real) = fs::canonicalize(root.path(link)) else { return Place::default() };
    let names: Vec<String> = real
        .components()
        .skip_while(|part| !part.as_os_str().to_string_lossy().starts_with("pci"))
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
            _ => None,
        })
        .collect();
    let Some((own, above)) = names.split_last() else { return Place::default() };
    let node = fs::read_to_string(real.join("numa_node")).ok();
    Place {
        pci: Some(own.clone()),
        above: above.to_vec(),
        // -1: the firmware does not say.
        node: node.and_then(|text| text.trim().parse().ok()),
    }
}

pub(super) fn has_gpus(root: &Root) -> bool {
    !root.names(GPUS).is_empty() || root.path("/dev/nvidiactl").exists()
}

pub(super) fn gpus(root: &Root) -> Gpus {
    let module = |name: &str| root.path(Path::new("/sys/module").join(name)).is_dir();
    Gpus {
        kernel_module: root.text("/proc/driver/nvidia/version").and_then(|text| {
            Some(text.lines().next()?.trim_start_matches("NVRM version:").trim().to_owned())
        }),
        devices: root.names(GPUS).iter().map(|address| gpu(root, address)).collect(),
        peer_memory: module("nvidia_peermem") || module("nv_peer_mem"),
        ..Gpus::default()
    }
}

fn gpu(root: &Root, address: &str) -> Gpu {
    let information = root.text(Path::new(GPUS).join(address).join("information")).unwrap_or_default();
    let told = |name: &str| information.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
    let address = address.to_ascii_lowercase();
    let found = place(root, &Path::new("/sys/bus/pci/devices").join(&address));
    Gpu {
        name: told("Model:").unwrap_or("NVIDIA GPU").to_owned(),
        minor: told("Device Minor:").and_then(|number| number.parse().ok()),
        place: Place { pci: Some(address), ..found },
        ..Gpu::default()
    }
}

/// Adds the driver's answer to what the kernel shows. In a container the driver may see
/// fewer devices than `/proc` lists: then its own are all that is known for certain.
pub(super) fn add_cuda(gpus: &mut Gpus, answer: Result<Vec<Gpu>, String>) {
    let seen = match answer {
        Ok(seen) => seen,
        Err(why) => {
            gpus.cuda = Facility::Refused(why);
            return;
        }
    };
    gpus.cuda = Facility::Works;
    if seen.len() == gpus.devices.len() {
        for (device, seen) in gpus.devices.iter_mut().zip(seen) {
            (device.memory, device.dma_buf) = (seen.memory, seen.dma_buf);
        }
    } else {
        gpus.devices = seen;
    }
}
