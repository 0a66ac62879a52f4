"""Training programs as people write them, run by test_training_programs. A program trains for some steps with what `jit` makes of its
functions and modules, and returns what it logged and what it trained."""

import collections
import copy
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = 8
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


@program
def mlp_whole_step(jit):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    crit = nn.CrossEntropyLoss(label_smoothing=0.1)

    @jit
    def train_step(x, y):
        opt.zero_grad()
        out = model(x)
        loss = crit(out, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        return loss.detach(), (out.argmax(-1) == y).sum()

    logs, correct, total = [], 0, 0
    for i in range(STEPS):
        x, y = torch.randn(6, 8), torch.randint(0, 3, (6,))
        loss, c = train_step(x, y)
        correct += c.item()
        total += len(y)
        logs.append((loss.item(), correct / total))
    return logs, [model, opt]


@program
def adamw_cosine_ema(jit):
    class EMA:
        def __init__(self, model, decay=0.9):
            self.decay = decay
            self.shadow = {k: v.clone().detach() for k, v in model.state_dict().items()}

        @torch.no_grad()
        def update(self, model):
            for k, v in model.state_dict().items():
                if v.dtype.is_floating_point:
                    self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
                else:
                    self.shadow[k].copy_(v)

    model = nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    ema = EMA(model)

    @jit
    def step(x, y):
        pred = model(x)
        loss = F.smooth_l1_loss(pred.squeeze(-1), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        ema.update(model)
        return loss

    logs = []
    for i in range(STEPS):
        logs.append(step(torch.randn(8, 5), torch.randn(8)).item())
        sched.step()
        logs.append(sched.get_last_lr()[0])
    return logs, [model, opt, ema.shadow]


@program
def dcgan(jit):
    G = nn.Sequential(nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
    D = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), nn.Conv2d(8, 1, 4, 1, 0, bias=False), nn.Sigmoid())

    def init(m):
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight.data, 0.0, 0.02)

    G.apply(init)
    D.apply(init)
    og = torch.optim.Adam(G.parameters(), lr=2e-3, betas=(0.5, 0.999))
    od = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.999))
    crit = nn.BCELoss()

    @jit
    def step(real, noise):
        D.zero_grad()
        b = real.size(0)
        label = torch.full((b,), 1.0)
        out = D(real).view(-1)
        errr = crit(out, label)
        errr.backward()
        D_x = out.mean()
        fake = G(noise)
        label.fill_(0.0)
        out = D(fake.detach()).view(-1)
        errf = crit(out, label)
        errf.backward()
        z1 = out.mean()
        errD = errr + errf
        od.step()
        G.zero_grad()
        label.fill_(1.0)
        out = D(fake).view(-1)
        errG = crit(out, label)
        errG.backward()
        og.step()
        return errD, errG, D_x, z1

    logs = []
    for i in range(STEPS):
        logs.append([t.item() for t in step(torch.randn(3, 1, 8, 8), torch.randn(3, 6, 1, 1))])
    return logs, [G, D, og, od]


@program
def gcn(jit):
    class GraphConvolution(nn.Module):
        def __init__(self, i, o):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(i, o))
            self.bias = nn.Parameter(torch.empty(o))
            s = 1.0 / math.sqrt(o)
            self.weight.data.uniform_(-s, s)
            self.bias.data.uniform_(-s, s)

        def forward(self, x, adj):
            return torch.spmm(adj, torch.mm(x, self.weight)) + self.bias

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.gc1 = GraphConvolution(6, 8)
            self.gc2 = GraphConvolution(8, 3)

        def forward(self, x, adj):
            x = F.relu(self.gc1(x, adj))
            x = F.dropout(x, 0.5, training=self.training)
            return F.log_softmax(self.gc2(x, adj), dim=1)

    a = (torch.rand(10, 10) < 0.3).float() + torch.eye(10)
    a = a / a.sum(1, keepdim=True)
    adj = a.to_sparse()
    x = torch.randn(10, 6)
    y = torch.randint(0, 3, (10,))
    idx = torch.arange(6)
    model = GCN()
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    m = jit(model)
    logs = []

    def accuracy(out, labels):
        p = out.max(1)[1].type_as(labels)
        return p.eq(labels).double().sum() / len(labels)

    for i in range(STEPS):
        model.train()
        opt.zero_grad()
        out = m(x, adj)
        loss = F.nll_loss(out[idx], y[idx])
        acc = accuracy(out[idx], y[idx])
        loss.backward()
        opt.step()
        model.eval()
        with torch.no_grad():
            out = m(x, adj)
            lv = F.nll_loss(out[6:], y[6:])
        logs.append((loss.item(), acc.item(), lv.item()))
    return logs, [model, opt]


@program
def message_passing(jit):
    class GIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = nn.Parameter(torch.zeros(1))
            self.mlp = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x, edge_index, batch):
            src, dst = edge_index
            for _ in range(2):
                agg = torch.zeros_like(x).index_add_(0, dst, x[src])
                x = self.mlp((1 + self.eps) * x + agg)
            n = int(batch.max()) + 1
            pooled = x.new_zeros(n, x.size(1)).scatter_add_(0, batch.unsqueeze(1).expand(-1, x.size(1)), x)
            return self.head(pooled)

    model = GIN()
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    m = jit(model)
    logs = []
    for i in range(STEPS):
        nodes = 8 + i % 4
        x = torch.randn(nodes, 4)
        e = torch.randint(0, nodes, (2, 20 + i % 5))
        b = torch.arange(nodes) // 3
        n = int(b.max()) + 1
        out = m(x, e, b)
        loss = F.cross_entropy(out, torch.arange(n) % 2)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logs.append(loss.item())
    return logs, [model, opt]


@program
def dqn(jit):
    Q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    T = copy.deepcopy(Q)
    T.load_state_dict(Q.state_dict())
    opt = torch.optim.RMSprop(Q.parameters(), lr=1e-3)
    Transition = collections.namedtuple("Transition", "state action next_state reward")
    memory = collections.deque([], maxlen=100)

    @jit
    def optimize_model(states, actions, nexts, mask, rewards):
        sav = Q(states).gather(1, actions)
        nsv = torch.zeros(8)
        with torch.no_grad():
            nsv[mask] = T(nexts).max(1).values
        expected = (nsv * 0.99) + rewards
        loss = nn.SmoothL1Loss()(sav, expected.unsqueeze(1))
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(Q.parameters(), 100)
        opt.step()
        return loss

    @jit
    def soft_update():
        sd, td = Q.state_dict(), T.state_dict()
        for k in sd:
            td[k] = sd[k] * 0.005 + td[k] * (1 - 0.005)
        T.load_state_dict(td)

    @jit
    def select_action(state, eps):
        if random.random() > eps:
            with torch.no_grad():
                return Q(state).max(1).indices.view(1, 1)
        return torch.tensor([[random.randrange(2)]], dtype=torch.long)

    logs, s = [], torch.randn(1, 4)
    for i in range(STEPS + 8):
        a = select_action(s, 0.9 * math.exp(-i / 10))
        n = torch.randn(1, 4) if i % 7 else None
        memory.append(Transition(s, a, n, torch.tensor([float(a.item())])))
        s = n if n is not None else torch.randn(1, 4)
        if len(memory) >= 8:
            b = Transition(*zip(*random.sample(list(memory), 8)))
            mask = torch.tensor([x is not None for x in b.next_state], dtype=torch.bool)
            nf = torch.cat([x for x in b.next_state if x is not None])
            logs.append(optimize_model(torch.cat(b.state), torch.cat(b.action), nf, mask, torch.cat(b.reward)).item())
            soft_update()
    return logs, [Q, T, opt]


@program
def reinforce(jit):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.affine1 = nn.Linear(4, 16)
            self.dropout = nn.Dropout(0.6)
            self.affine2 = nn.Linear(16, 2)
            self.saved_log_probs = []
            self.rewards = []

        def forward(self, x):
            return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=1)

    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=1e-2)
    eps = np.finfo(np.float32).eps.item()
    from torch.distributions import Categorical

    @jit
    def select_action(state):
        state = torch.from_numpy(state).float().unsqueeze(0)
        probs = policy(state)
        m = Categorical(probs)
        action = m.sample()
        policy.saved_log_probs.append(m.log_prob(action))
        return action.item()

    @jit
    def finish_episode():
        R = 0
        policy_loss = []
        returns = collections.deque()
        for r in policy.rewards[::-1]:
            R = r + 0.99 * R
            returns.appendleft(R)
        returns = torch.tensor(returns)
        returns = (returns - returns.mean()) / (returns.std() + eps)
        for lp, R in zip(policy.saved_log_probs, returns):
            policy_loss.append(-lp * R)
        opt.zero_grad()
        policy_loss = torch.cat(policy_loss).sum()
        policy_loss.backward()
        opt.step()
        del policy.rewards[:]
        del policy.saved_log_probs[:]
        return policy_loss.detach()

    logs = []
    for ep in range(10):
        for t in range(6):
            a = select_action(np.random.randn(4))
            policy.rewards.append(float(a) + np.random.rand())
        logs.append(finish_episode().item())
    return logs, [policy, opt]


@program
def sac(jit):
    class Actor(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 8)
            self.mu = nn.Linear(8, 2)
            self.ls = nn.Linear(8, 2)

        def forward(self, s):
            h = F.relu(self.net(s))
            mu, ls = self.mu(h), torch.clamp(self.ls(h), -20, 2)
            d = torch.distributions.Normal(mu, ls.exp())
            x = d.rsample()
            y = torch.tanh(x)
            return y, (d.log_prob(x) - torch.log(1 - y.pow(2) + 1e-6)).sum(1, keepdim=True)

    actor = Actor()
    q1 = nn.Linear(5, 1)
    q2 = nn.Linear(5, 1)
    t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
    log_alpha = torch.zeros(1, requires_grad=True)
    oa = torch.optim.Adam(actor.parameters(), 3e-4)
    oq = torch.optim.Adam(list(q1.parameters()) + list(q2.parameters()), 3e-4)
    ol = torch.optim.Adam([log_alpha], 3e-4)

    @jit
    def update(s, a, r, n, d):
        with torch.no_grad():
            na, nlp = actor(n)
            x = torch.cat([n, na], 1)
            tq = torch.min(t1(x), t2(x)) - log_alpha.exp() * nlp
            y = r + (1 - d) * 0.99 * tq
        sa = torch.cat([s, a], 1)
        ql = F.mse_loss(q1(sa), y) + F.mse_loss(q2(sa), y)
        oq.zero_grad()
        ql.backward()
        oq.step()
        pa, lp = actor(s)
        x = torch.cat([s, pa], 1)
        al = (log_alpha.exp().detach() * lp - torch.min(q1(x), q2(x))).mean()
        oa.zero_grad()
        al.backward()
        oa.step()
        tl = -(log_alpha * (lp + -2.0).detach()).mean()
        ol.zero_grad()
        tl.backward()
        ol.step()
        for q, t in ((q1, t1), (q2, t2)):
            for p, tp in zip(q.parameters(), t.parameters()):
                tp.data.copy_(tp.data * 0.995 + p.data * 0.005)
        return ql.item(), al.item(), tl.item()

    logs = [update(torch.randn(6, 3), torch.randn(6, 2), torch.randn(6, 1), torch.randn(6, 3), torch.zeros(6, 1)) for _ in range(STEPS)]
    return logs, [actor, q1, q2, t1, t2, oa, oq, ol, [log_alpha]]


@program
def moco(jit):
    class MoCo(nn.Module):
        def __init__(self, K=16, dim=4):
            super().__init__()
            self.K = K
            self.q = nn.Linear(6, dim)
            self.k = nn.Linear(6, dim)
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data.copy_(a.data)
                b.requires_grad = False
            self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
            self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

        @torch.no_grad()
        def _momentum(self):
            for a, b in zip(self.q.parameters(), self.k.parameters()):
                b.data = b.data * 0.99 + a.data * 0.01

        @torch.no_grad()
        def _enqueue(self, keys):
            n = keys.shape[0]
            ptr = int(self.queue_ptr)
            assert self.K % n == 0
            self.queue[:, ptr : ptr + n] = keys.T
            ptr = (ptr + n) % self.K
            self.queue_ptr[0] = ptr

        def forward(self, a, b):
            q = F.normalize(self.q(a), dim=1)
            with torch.no_grad():
                self._momentum()
                idx = torch.randperm(b.shape[0])
                k = F.normalize(self.k(b[idx]), dim=1)
                k = k[torch.argsort(idx)]
            pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([pos, neg], dim=1) / 0.07
            labels = torch.zeros(logits.shape[0], dtype=torch.long)
            self._enqueue(k)
            return logits, labels

    model = MoCo()
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.03, momentum=0.9)
    m = jit(model)
    logs = []
    for i in range(STEPS):
        x = torch.randn(4, 6)
        out, lab = m(x, x + 0.1)
        loss = F.cross_entropy(out, lab)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logs.append(loss.item())
    return logs, [model, opt]


@program
def maml(jit):
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.vars = nn.ParameterList(
                [nn.Parameter(torch.randn(8, 1) * 0.3), nn.Parameter(torch.zeros(8)), nn.Parameter(torch.randn(1, 8) * 0.3), nn.Parameter(torch.zeros(1))]
            )

        def forward(self, x, vars=None):
            if vars is None:
                vars = self.vars
            return F.linear(F.relu(F.linear(x, vars[0], vars[1])), vars[2], vars[3])

    net = Learner()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    @jit
    def meta(xs, ys, xq, yq):
        losses = 0
        for i in range(xs.shape[0]):
            l = F.mse_loss(net(xs[i]), ys[i])
            g = torch.autograd.grad(l, net.parameters(), create_graph=True)
            fast = list(map(lambda p: p[1] - 0.1 * p[0], zip(g, net.parameters())))
            for k in range(1, 2):
                l = F.mse_loss(net(xs[i], fast), ys[i])
                g = torch.autograd.grad(l, fast, create_graph=True)
                fast = list(map(lambda p: p[1] - 0.1 * p[0], zip(g, fast)))
            losses = losses + F.mse_loss(net(xq[i], fast), yq[i])
        loss = losses / xs.shape[0]
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    logs = []
    for i in range(STEPS):
        x = torch.rand(2, 5, 1)
        q = torch.rand(2, 5, 1)
        logs.append(meta(x, x.sin(), q, q.sin()).item())
    return logs, [net, opt]


@program
def reptile(jit):
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    @jit
    def inner(x, y):
        model.zero_grad()
        l = (model(x) - y).pow(2).mean()
        l.backward()
        for p in model.parameters():
            p.data -= 0.02 * p.grad.data
        return l

    logs = []
    for i in range(STEPS // 3):
        before = copy.deepcopy(model.state_dict())
        x = torch.rand(6, 1)
        for k in range(3):
            logs.append(inner(x, (x + i).sin()).item())
        after = model.state_dict()
        model.load_state_dict({n: before[n] + (after[n] - before[n]) * 0.1 for n in before})
    return logs, [model]


@program
def yolo_loss(jit):
    head = nn.Conv2d(4, 2 * 7, 1)
    opt = torch.optim.SGD(head.parameters(), lr=0.01)
    anchors = torch.tensor([[1.0, 2.0], [2.0, 1.0]])

    def iou(b1, b2):
        x1 = torch.max(b1[:, 0] - b1[:, 2] / 2, b2[:, 0] - b2[:, 2] / 2)
        x2 = torch.min(b1[:, 0] + b1[:, 2] / 2, b2[:, 0] + b2[:, 2] / 2)
        y1 = torch.max(b1[:, 1] - b1[:, 3] / 2, b2[:, 1] - b2[:, 3] / 2)
        y2 = torch.min(b1[:, 1] + b1[:, 3] / 2, b2[:, 1] + b2[:, 3] / 2)
        inter = (x2 - x1).clamp(0) * (y2 - y1).clamp(0)
        return inter / (b1[:, 2] * b1[:, 3] + b2[:, 2] * b2[:, 3] - inter + 1e-9)

    def build_targets(p, targets):
        na, nt = 2, targets.shape[0]
        ai = torch.arange(na).float().view(na, 1).repeat(1, nt)
        t = torch.cat((targets.repeat(na, 1, 1), ai[:, :, None]), 2)
        gain = torch.ones(7)
        gain[2:6] = torch.tensor(p.shape)[[3, 2, 3, 2]].float()
        t = t * gain
        r = t[:, :, 4:6] / anchors[:, None]
        j = torch.max(r, 1 / r).max(2)[0] < 4
        t = t[j]
        b, c = t[:, :2].long().T
        gxy = t[:, 2:4]
        gwh = t[:, 4:6]
        gij = gxy.long()
        gi, gj = gij.T
        a = t[:, 6].long()
        return c, torch.cat((gxy - gij, gwh), 1), (b, a, gj.clamp_(0, p.shape[2] - 1), gi.clamp_(0, p.shape[3] - 1)), anchors[a]

    @jit
    def compute(x, targets):
        p = head(x)
        p = p.view(p.shape[0], 2, 7, p.shape[2], p.shape[3]).permute(0, 1, 3, 4, 2).contiguous()
        lcls = torch.zeros(1)
        lbox = torch.zeros(1)
        lobj = torch.zeros(1)
        tc, tb, (b, a, gj, gi), anch = build_targets(p.permute(0, 1, 4, 2, 3)[:, :, 0], targets)
        tobj = torch.zeros_like(p[..., 0])
        n = b.shape[0]
        if n:
            ps = p[b, a, gj, gi]
            pxy = ps[:, :2].sigmoid() * 2 - 0.5
            pwh = (ps[:, 2:4].sigmoid() * 2) ** 2 * anch
            pb = torch.cat((pxy, pwh), 1)
            i = iou(pb, tb)
            lbox += (1.0 - i).mean()
            tobj[b, a, gj, gi] = i.detach().clamp(0).type(tobj.dtype)
            t = torch.full_like(ps[:, 5:], 0.0)
            t[range(n), tc] = 1.0
            lcls += F.binary_cross_entropy_with_logits(ps[:, 5:], t)
        lobj += F.binary_cross_entropy_with_logits(p[..., 4], tobj)
        bs = tobj.shape[0]
        loss = lbox * 0.05 + lobj + lcls * 0.5
        return loss * bs, torch.cat((lbox, lobj, lcls, loss)).detach()

    logs = []
    for i in range(STEPS):
        nt = 3 + i % 3
        tg = torch.cat([torch.randint(0, 2, (nt, 1)).float(), torch.randint(0, 2, (nt, 1)).float(), torch.rand(nt, 4)], 1)
        l, parts = compute(torch.randn(2, 4, 4, 4), tg)
        opt.zero_grad()
        l.backward()
        opt.step()
        logs.append(parts.tolist())
    return logs, [head, opt]


@program
def seq2seq_attention(jit):
    class Enc(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(10, 8)
            self.g = nn.GRU(8, 8)

        def forward(self, x, h):
            o, h = self.g(self.e(x).view(1, 1, -1), h)
            return o, h

    class Dec(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(10, 8)
            self.attn = nn.Linear(16, 6)
            self.comb = nn.Linear(16, 8)
            self.g = nn.GRU(8, 8)
            self.o = nn.Linear(8, 10)

        def forward(self, x, h, eo):
            e = self.e(x).view(1, 1, -1)
            w = F.softmax(self.attn(torch.cat((e[0], h[0]), 1)), dim=1)
            ap = torch.bmm(w.unsqueeze(0), eo.unsqueeze(0))
            o = torch.cat((e[0], ap[0]), 1)
            o = F.relu(self.comb(o).unsqueeze(0))
            o, h = self.g(o, h)
            return F.log_softmax(self.o(o[0]), dim=1), h, w

    enc, dec = Enc(), Dec()
    eo_ = torch.optim.SGD(enc.parameters(), lr=0.01)
    do_ = torch.optim.SGD(dec.parameters(), lr=0.01)
    crit = nn.NLLLoss()

    @jit
    def train(inp, tgt):
        h = torch.zeros(1, 1, 8)
        eo_.zero_grad()
        do_.zero_grad()
        eouts = torch.zeros(6, 8)
        loss = 0
        for ei in range(inp.size(0)):
            o, h = enc(inp[ei], h)
            eouts[ei] = o[0, 0]
        di = torch.tensor([[0]])
        dh = h
        force = True if random.random() < 0.5 else False
        if force:
            for k in range(tgt.size(0)):
                o, dh, w = dec(di, dh, eouts)
                loss += crit(o, tgt[k])
                di = tgt[k]
        else:
            for k in range(tgt.size(0)):
                o, dh, w = dec(di, dh, eouts)
                topv, topi = o.topk(1)
                di = topi.squeeze().detach()
                loss += crit(o, tgt[k])
                if di.item() == 1:
                    break
        loss.backward()
        eo_.step()
        do_.step()
        return loss.item() / tgt.size(0)

    logs = [train(torch.randint(0, 10, (4, 1)), torch.randint(0, 10, (3, 1))) for _ in range(STEPS)]
    return logs, [enc, dec, eo_, do_]


@program
def cutmix(jit):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)

    def rand_bbox(size, lam):
        W, H = size[2], size[3]
        cr = np.sqrt(1.0 - lam)
        cw, ch = int(W * cr), int(H * cr)
        cx, cy = np.random.randint(W), np.random.randint(H)
        return np.clip(cx - cw // 2, 0, W), np.clip(cy - ch // 2, 0, H), np.clip(cx + cw // 2, 0, W), np.clip(cy + ch // 2, 0, H)

    @jit
    def step(x, y):
        lam = np.random.beta(1.0, 1.0)
        ri = torch.randperm(x.size()[0])
        ta, tb = y, y[ri]
        a, b, c, d = rand_bbox(x.size(), lam)
        x[:, :, a:c, b:d] = x[ri, :, a:c, b:d]
        lam = 1 - ((c - a) * (d - b) / (x.size()[-1] * x.size()[-2]))
        out = model(x)
        loss = F.cross_entropy(out, ta) * lam + F.cross_entropy(out, tb) * (1.0 - lam)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    logs = [step(torch.randn(4, 1, 8, 8), torch.randint(0, 3, (4,))).item() for _ in range(STEPS)]
    return logs, [model, opt]


@program
def sam_swa(jit):
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **kw):
            super().__init__(params, dict(rho=rho, **kw))
            self.base_optimizer = base(self.param_groups, **kw)
            self.param_groups = self.base_optimizer.param_groups
            self.defaults.update(self.base_optimizer.defaults)

        @torch.no_grad()
        def first_step(self, zero_grad=False):
            n = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]), p=2)
            for g in self.param_groups:
                scale = g["rho"] / (n + 1e-12)
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * scale.to(p))
            if zero_grad:
                self.zero_grad()

        @torch.no_grad()
        def second_step(self, zero_grad=False):
            for g in self.param_groups:
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    p.data = self.state[p]["old_p"]
            self.base_optimizer.step()
            if zero_grad:
                self.zero_grad()

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    swa = torch.optim.swa_utils.AveragedModel(model)

    @jit
    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.first_step(zero_grad=True)
        F.cross_entropy(model(x), y).backward()
        opt.second_step(zero_grad=True)
        return loss

    logs = []
    for i in range(STEPS):
        logs.append(step(torch.randn(5, 6), torch.randint(0, 3, (5,))).item())
        if i > 20:
            swa.update_parameters(model)
    return logs, [model, swa, opt.base_optimizer]


@program
def lion_custom_opt(jit):
    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), wd=0.0):
            super().__init__(params, dict(lr=lr, betas=betas, weight_decay=wd))

        @torch.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for g in self.param_groups:
                for p in g["params"]:
                    if p.grad is None:
                        continue
                    p.data.mul_(1 - g["lr"] * g["weight_decay"])
                    grad = p.grad
                    state = self.state[p]
                    if len(state) == 0:
                        state["exp_avg"] = torch.zeros_like(p)
                        state["n"] = 0
                    state["n"] += 1
                    m = state["exp_avg"]
                    b1, b2 = g["betas"]
                    u = m * b1 + grad * (1 - b1)
                    p.add_(u.sign_(), alpha=-g["lr"])
                    m.mul_(b2).add_(grad, alpha=1 - b2)
            return loss

    class AverageMeter:
        def __init__(self):
            self.reset()

        def reset(self):
            self.val = self.avg = self.sum = self.count = 0

        def update(self, val, n=1):
            self.val = val
            self.sum += val * n
            self.count += n
            self.avg = self.sum / self.count

    model = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(32, 3))
    opt = Lion(model.parameters(), lr=1e-2, wd=0.1)
    meter = AverageMeter()

    @jit
    def step(x, y):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        meter.update(loss.item(), x.size(0))
        return meter.avg

    logs = [step(torch.randint(0, 10, (3, 4)), torch.randint(0, 3, (3,))) for _ in range(STEPS)]
    return logs, [model, opt]


@program
def moe_router(jit):
    class MoE(nn.Module):
        def __init__(self, d=6, n=4, k=2):
            super().__init__()
            self.n, self.k = n, k
            self.gate = nn.Linear(d, n)
            self.ex = nn.ModuleList([nn.Sequential(nn.Linear(d, 8), nn.GELU(), nn.Linear(8, d)) for _ in range(n)])

        def forward(self, x):
            s = F.softmax(self.gate(x), -1)
            w, i = s.topk(self.k, -1)
            w = w / w.sum(-1, keepdim=True)
            out = torch.zeros_like(x)
            mask = F.one_hot(i, self.n).permute(2, 1, 0)
            for e, ex in enumerate(self.ex):
                idx, top = torch.where(mask[e])
                if top.shape[0] == 0:
                    continue
                out.index_add_(0, top, ex(x[top]) * w[top, idx, None])
            return out, (s.mean(0) * mask.float().mean((1, 2))).sum() * self.n

    model = MoE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    m = jit(model)
    logs = []
    for i in range(STEPS):
        x = torch.randn(9, 6)
        o, aux = m(x)
        loss = F.mse_loss(o, x) + 0.01 * aux
        opt.zero_grad()
        loss.backward()
        opt.step()
        logs.append((loss.item(), aux.item()))
    return logs, [model, opt]
