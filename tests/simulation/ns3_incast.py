"""Two senders into one link in ns-3, whose count test_links.py compares; `pip install ns3`, then run it."""

from ns import ns

PACKETS, FRAME_BYTES, QUEUE = 1000, 1086, 50
FRAME_NS = round(8e9 * FRAME_BYTES / 100e6)

nodes = ns.NodeContainer()
nodes.Create(4)
ns.InternetStackHelper().Install(nodes)
links = ns.PointToPointHelper()
links.SetDeviceAttribute("DataRate", ns.StringValue("100Mbps"))
links.SetChannelAttribute("Delay", ns.StringValue("10us"))
size = ns.QueueSizeValue(ns.QueueSize(f"{QUEUE}p"))
links.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", size)
addresses, placed = ns.Ipv4AddressHelper(), []
for number, (one, other) in enumerate(((0, 2), (1, 2), (2, 3))):
    devices = links.Install(nodes.Get(one), nodes.Get(other))
    addresses.SetBase(ns.Ipv4Address(f"10.0.{number}.0"), ns.Ipv4Mask("255.255.255.0"))
    placed.append(addresses.Assign(devices))
    ns.TrafficControlHelper().Uninstall(devices)
ns.Ipv4GlobalRoutingHelper.PopulateRoutingTables()
servers = ns.UdpServerHelper(9).Install(nodes.Get(3))
servers.Start(ns.Seconds(0))
for host in (0, 1):
    client = ns.UdpClientHelper(placed[2].GetAddress(1).ConvertTo(), 9)
    client.SetAttribute("MaxPackets", ns.UintegerValue(PACKETS))
    client.SetAttribute("Interval", ns.TimeValue(ns.NanoSeconds(FRAME_NS)))
    client.SetAttribute("PacketSize", ns.UintegerValue(FRAME_BYTES - 30))  # IPv4, UDP and PPP
    client.Install(nodes.Get(host)).Start(ns.NanoSeconds(10**9 + host * FRAME_NS // 3))
ns.Simulator.Stop(ns.Seconds(3))
ns.Simulator.Run()
print("received", servers.Get(0).GetObject[ns.UdpServer]().GetReceived())
