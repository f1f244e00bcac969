//! Files and streams to many hosts: Orca ([`rackweave_group::orca`]) over sockets.
